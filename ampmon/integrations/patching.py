"""Feeds a stream from an object's method, which takes whether gradients overflowed and moves the scale."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ampmon.client.feed import Feed, Policy, Value, stream


_FEED = "_ampmon_feed"


def feed_from(
    owner: Any, method: str, scale: Callable[[], Value], name: str, policy: Policy
) -> Feed:
    """Return a stream that each call of the owner's method feeds from now on, or the existing stream.

    ``scale`` returns the current scale. The method still returns and raises as before. If it raises, for example
    because the scale cannot fall further, gradients overflowed: the update is recorded, as skipped.
    """
    known = getattr(owner, _FEED, None)
    if isinstance(known, Feed):
        return known
    feed = stream(name, policy=policy)
    stock = getattr(owner, method)

    @functools.wraps(stock)
    def update(*args: Any, **kwargs: Any) -> Any:
        before = scale()
        try:
            return stock(*args, **kwargs)
        finally:
            # The first argument says what was found, by position or by name.
            feed.update(before, scale(), next(iter((*args, *kwargs.values())), False))

    setattr(owner, method, update)
    setattr(owner, _FEED, feed)
    return feed
