"""The live page: a look at the whole proxy for whoever has a browser."""

from lbproxy.control.admin.page.site import add_page

__all__ = ["add_page"]
