#!/usr/bin/env python3
"""The rules of RMM's pool, with streams, in Python.

Prints what `rmm_peer pool` prints, line by line.
"""

import argparse
import bisect

PAGE, UNIT = 2 << 20, 256


def rounded_up(size, unit):
    return -(-size // unit) * unit


class Pool:
    def __init__(self, capacity, initial, maximum):
        self.capacity, self.maximum = capacity, maximum
        self.used = self.held = self.taken = self.next = 0
        self.heads = {}  # start of a segment -> (number, bytes)
        self.lists, self.order = (
            {},
            [],
        )  # stream -> [[address, bytes]] by address; streams in the order of their events, of their first use
        self.out = []
        if initial:  # in the default stream's list
            self.order.append(0)
            self.lists[0] = [self.take(initial)]

    def take(self, size):
        pages = rounded_up(size, PAGE)
        if self.used + pages > self.capacity:
            self.out.append(f"! {size}")
            return None
        address = self.next
        self.used, self.next, self.held = self.used + pages, self.next + pages, self.held + size
        self.heads[address] = (self.taken, size)
        self.out.append(f"+ {self.taken} {size}")
        self.taken += 1
        return [address, size]

    def insert(self, blocks, block):
        """Merges with neighbours in the same list, never across the start of a segment."""
        place = bisect.bisect([other[0] for other in blocks], block[0])
        if place and sum(blocks[place - 1]) == block[0] and block[0] not in self.heads:
            blocks[place - 1][1] += block[1]
            place -= 1
            block = blocks[place]
        else:
            blocks.insert(place, block)
        if place + 1 < len(blocks) and sum(block) == blocks[place + 1][0] and blocks[place + 1][0] not in self.heads:
            block[1] += blocks.pop(place + 1)[1]

    def cut(self, blocks, block, size):
        if block[1] > size:
            self.insert(blocks, [block[0] + size, block[1] - size])
        return block[0]

    def growth(self, size):
        if self.maximum is None:
            return max(size, self.held)
        left = rounded_up(self.maximum - self.held, UNIT)
        return max(size, left // 2) if size <= left else 0  # halves are not rounded

    def allocate(self, size, stream):
        if stream not in self.order:
            self.order.append(stream)
        own = self.lists.setdefault(stream, [])
        if block := best(own, size):
            return self.cut(own, block, size)
        others = [other for other in self.order if other != stream and other in self.lists]
        for other in others:  # take from another stream; the remainder stays in that stream's list
            if block := best(self.lists[other], size):
                self.out.append("w")
                return self.cut(self.lists[other], block, size)
        for other in others:  # before it grows: merge the other lists, one by one, until a block suffices
            self.out.append("w")
            for block in self.lists.pop(other):
                self.insert(own, block)
            if block := best(own, size):
                return self.cut(own, block, size)
        return self.grow(own, size)

    def grow(self, own, size):
        wanted = self.growth(size)
        if wanted < size and self.maximum is not None and size <= self.maximum:
            self.give_back(own, size)
            wanted = self.growth(size)
        while wanted >= size:
            if block := self.take(wanted):
                return self.cut(own, block, size)
            if wanted == size:
                return None
            wanted = max(size, wanted // 2)
        return None

    def give_back(self, own, size):
        """Returns entire segments until the maximum leaves room."""
        for block in list(own):
            if self.maximum - self.held >= size:
                return
            if self.heads.get(block[0], (0, 0))[1] == block[1]:
                own.remove(block)
                number, _ = self.heads.pop(block[0])
                self.used -= rounded_up(block[1], PAGE)
                self.held -= block[1]
                self.out.append(f"- {number}")

    def name(self, address):
        head = max(start for start in self.heads if start <= address)
        return f"{self.heads[head][0]}+{address - head}"


def best(blocks, size):
    """Takes the tightest block from a list; if several are equal, the lowest one."""
    fitting = [block for block in blocks if block[1] >= size]
    if not fitting:
        return None
    block = min(fitting, key=lambda block: (block[1], block[0]))
    blocks.remove(block)
    return block


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capacity", metavar="CAPACITY", type=int, help="the device's memory in bytes")
    parser.add_argument("initial", metavar="INITIAL", type=int, help="the pool's first size in bytes")
    parser.add_argument(
        "maximum",
        metavar="MAXIMUM",
        type=lambda text: None if text == "-" else int(text),
        help="the pool's largest size in bytes; - for none",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a script of requests, as gen.py writes it")
    options = parser.parse_args()
    pool = Pool(options.capacity, options.initial, options.maximum)
    live = {}
    for line in open(options.script):
        kind, name, *numbers = line.split() or ("", "")
        if kind == "a":
            size, stream = rounded_up(int(numbers[0]), UNIT), int(numbers[1])
            address = pool.allocate(size, stream)
            pool.out.append(f"a {name} oom" if address is None else f"a {name} {pool.name(address)}")
            if address is not None:
                live[name] = (address, size, stream)
        elif kind == "f":
            pool.out.append(f"f {name}" if name in live else f"f {name} none")
            if name in live:
                address, size, stream = live.pop(name)
                pool.insert(pool.lists.setdefault(stream, []), [address, size])
    print("\n".join(pool.out))


if __name__ == "__main__":
    main()
