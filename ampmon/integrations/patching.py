"""A stream fed by an instance's own method: called with whether gradients overflowed, it moves the scale."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ampmon.client.feed import Feed, Policy, Value, stream


_FEED = "_ampmon_feed"


def feed_from(
    owner: Any, method: str, scale: Callable[[], Value], name: str, policy: Policy
) -> Feed:
    """The stream that each call of the owner's method feeds from now on; the one there is where it does already.

    ``scale`` gives the scale in force. The method returns and raises what it did: what it raises, as for want of a
    lower scale, it raises at an overflow, whose step is skipped.
    """
    known = getattr(owner, _FEED, None)
    if isinstance(known, Feed):
        return known
    feed = stream(name, policy=policy)
    stock = getattr(owner, method)

    @functools.wraps(stock)
    def update(overflow: Any = False, *args: Any, **kwargs: Any) -> Any:
        before = scale()
        try:
            return stock(overflow, *args, **kwargs)
        finally:
            feed.update(before, scale(), overflow)

    setattr(owner, method, update)
    setattr(owner, _FEED, feed)
    return feed
