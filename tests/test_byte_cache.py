"""byte_cache.py: bounded whatever comes, the least lately used goes first, and what is kept is what was put."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from engine.byte_cache import EACH, ByteCache

ROOM = 5 * (EACH + 100)


def test_what_was_used_lately_stays() -> None:
    cache = ByteCache[str, int](3 * (EACH + 10))
    for number, name in enumerate("abc"):
        cache.put(name, number, 10)
    assert cache.get("a") == 0
    cache.put("d", 3, 10)
    assert [cache.get(name) for name in "abcd"] == [0, None, 2, 3]
    assert cache.snapshot("x") == {
        "x_entries": 3,
        "x_bytes": 3 * (EACH + 10),
        "x_hits_total": 4,
        "x_misses_total": 1,
        "x_evicted_total": 1,
    }


def test_what_is_too_large_alone_is_not_kept_and_takes_nobodys_place() -> None:
    cache = ByteCache[str, str](ROOM)
    cache.put("a", "small", 100)
    cache.put("b", "large", ROOM)
    assert (cache.get("a"), cache.get("b")) == ("small", None)
    cache.put("a", "grown", ROOM)
    assert (cache.get("a"), len(cache), cache.num_bytes) == (None, 0, 0)


def test_what_is_removed_is_gone_and_gives_its_room_back() -> None:
    cache = ByteCache[str, int](ROOM)
    cache.put("a", 1, 100)
    assert cache.remove("a")
    assert not cache.remove("a")
    assert (cache.num_bytes, cache.get("a")) == (0, None)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 900)),
        st.tuples(st.just("get"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
    ),
    max_size=60,
)


@given(actions)
def test_it_agrees_with_a_list_in_order_of_use(asked: list[tuple[str, int, int]]) -> None:
    cache, order = ByteCache[int, object](ROOM), list[tuple[int, object, int]]()
    for what, key, size in asked:
        known = next((entry for entry in order if entry[0] == key), None)
        order = [entry for entry in order if entry[0] != key]
        match what:
            case "put":
                value = object()
                cache.put(key, value, size)
                if size + EACH <= ROOM:
                    order.append((key, value, size + EACH))
                    while sum(entry[2] for entry in order) > ROOM:
                        order.pop(0)
            case "get":
                assert cache.get(key) is (known[1] if known else None)
                order += [known] if known else []
            case "remove":
                assert cache.remove(key) == (known is not None)
        assert (len(cache), cache.num_bytes) == (len(order), sum(entry[2] for entry in order))
        assert cache.num_bytes <= ROOM


def test_ten_thousand_voices_take_no_more_than_they_may() -> None:
    random, cache = Random(0), ByteCache[bytes, bytes](100_000)
    for number in range(10_000):
        codes = bytes(random.randrange(200, 12_000))
        cache.put(number.to_bytes(32, "big"), codes, len(codes))
        assert cache.num_bytes <= 100_000
    assert cache.evicted == 10_000 - len(cache)
    assert cache.get((9_999).to_bytes(32, "big")) is not None
