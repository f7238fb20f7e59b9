"""Orders in which a question's options are listed, to average out a model's liking for a place in a list."""

from __future__ import annotations


def orders(n_options: int, n_orders: int) -> tuple[tuple[int, ...], ...]:
    """Up to `n_orders` cyclic orders of the options, beginning with the given one. Each lists option numbers by place.

    There are only n_options different ones. Fewer than that are spread evenly, so that an option
    moves through the whole list: order k begins with option k * n_options // n_orders.
    """
    count = min(n_orders, n_options)
    shifts = [k * n_options // count for k in range(count)]
    return tuple((*range(shift, n_options), *range(shift)) for shift in shifts)
