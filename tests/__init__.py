"""What lbproxy must do. No deadline stands over a property: how long an example takes says how busy the machine is."""

from hypothesis import settings

settings.register_profile("lbproxy", deadline=None)
settings.load_profile("lbproxy")
