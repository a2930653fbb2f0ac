// Brings what is shown up to what the server says, touching only what differs: focus, typed text, scroll positions and
// running transitions stay. Attributes that begin with "data-ui" are ours; the server knows nothing of them.

const isOurs = (name) => name.startsWith("data-ui");

export function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

export function patch(old, now) {
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
    old.replaceWith(now);
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== now.data) old.data = now.data;
  } else {
    patchAttributes(old, now);
    patchChildren(old, now);
  }
}

function patchAttributes(old, now) {
  for (const { name } of [...old.attributes]) {
    if (!isOurs(name) && !now.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of now.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

// Children with an id are found by it, so that a list that grows at its top keeps its elements.
function patchChildren(old, now) {
  const byId = new Map();
  for (const child of old.children) if (child.id) byId.set(child.id, child);
  let at = old.firstChild;
  for (const wanted of [...now.childNodes]) {
    const known = wanted.id ? byId.get(wanted.id) : at?.id ? null : at;
    if (!known) {
      old.insertBefore(wanted, at);
      continue;
    }
    if (known === at) at = at.nextSibling;
    else old.insertBefore(known, at);
    patch(known, wanted);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}
