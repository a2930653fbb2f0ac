// News from the server: a stream of events while this page is in sight; the page itself, asked for again and again,
// where a stream cannot be had.

const QUIET_MS = 4000;
const POLL_MS = 3000;
const RETRY_MS = 30000;

export function watch(seen, onNews, onState) {
  let source = null;
  let polling = 0;
  let heard = Date.now();

  function listen() {
    stop();
    heard = Date.now();
    source = new EventSource(`page/live?since=${seen}`);
    source.onmessage = (event) => {
      const { pieces } = JSON.parse(event.data);
      seen = event.lastEventId;
      news(pieces);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) poll(Date.now() + RETRY_MS);
    };
  }

  async function poll(until) {
    stop();
    const mine = (polling = setTimeout(() => (Date.now() < until ? poll(until) : listen()), POLL_MS));
    try {
      const answer = await fetch("./", { signal: AbortSignal.timeout(POLL_MS) });
      const text = await answer.text();
      if (answer.ok && mine === polling) news(new DOMParser().parseFromString(text, "text/html"));
    } catch {
      // The clock below says how old the news are.
    }
  }

  function news(what) {
    heard = Date.now();
    onNews(what);
    onState("live", 0);
  }

  function stop() {
    source?.close();
    source = null;
    clearTimeout(polling);
    polling = 0;
  }

  setInterval(() => {
    const age = Date.now() - heard;
    if (age > QUIET_MS && !document.hidden) onState("stale", Math.round(age / 1000));
  }, 1000);
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));
  if (!document.hidden) listen();
}
