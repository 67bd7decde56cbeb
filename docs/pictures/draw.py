#!/usr/bin/env python3
"""Draws the pictures of docs/concepts.md and of four other pages as SVG files. It needs Python alone.

Every picture is 600 units wide with text of at least 13, so that it can be read at 500 pixels. Colours follow the reader's
light or dark setting. A label that does not fit into its box stops the script.
"""

import pathlib
import re
from xml.sax.saxutils import escape

WIDTH = 600
FONT = 13.5
LETTER = 0.54  # mean width of a letter over the size of the font
STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.soft{fill:#59636e}.bold{font-weight:600}
.paper{fill:#ffffff}
.hold{fill:#d0342c}.on-hold{fill:#ffffff}
.spin{fill:#f2c14e}.on-spin{fill:#3a2a00}
.work{fill:#b9d3ee}.on-work{fill:#12233a}
.free{fill:#ffffff;stroke:#59636e;stroke-dasharray:4 3}.on-free{fill:#1f2328}
.off{fill:#e3e6ea}.on-off{fill:#3a424b}
.set{fill:#6b4fbb}.on-set{fill:#ffffff}
.line{stroke:#59636e;stroke-width:1.2;fill:none}.thin{stroke:#c4ccd4;stroke-width:1;fill:none}
.arrow{stroke:#0a5ab8;stroke-width:2;fill:none}.head{fill:#0a5ab8}.blue{fill:#0a5ab8}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.soft{fill:#9da7b3}.paper{fill:#0d1117}
.hold{fill:#ff6f61}.on-hold{fill:#1b0503}
.spin{fill:#b8860b}.on-spin{fill:#ffffff}
.work{fill:#274a70}.on-work{fill:#e6edf3}
.free{fill:#0d1117;stroke:#9da7b3}.on-free{fill:#e6edf3}
.off{fill:#2a3138}.on-off{fill:#c6ced6}
.set{fill:#b39df3}.on-set{fill:#160b36}
.line{stroke:#9da7b3}.thin{stroke:#3d444d}.arrow{stroke:#79b8ff}.head{fill:#79b8ff}.blue{fill:#79b8ff}
}
"""


def wide(text, size=FONT):
    return len(text) * size * LETTER


class Picture:
    def __init__(self, height, title, description):
        self.height, self.title, self.description = height, title, description
        self.parts = []

    def add(self, part):
        self.parts.append(part)

    def text(self, x, y, text, kind="", anchor="start", size=FONT):
        left = {"start": x, "middle": x - wide(text, size) / 2, "end": x - wide(text, size)}[anchor]
        assert left >= 0 and left + wide(text, size) <= WIDTH, f"{self.title}: '{text}' leaves the picture"
        self.add(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}" font-size="{size:g}">{escape(text)}</text>')

    def box(self, x, y, w, h, kind, label=""):
        assert not label or wide(label) <= w - 4, f"{self.title}: '{label}' is {wide(label):.0f} wide, its box {w:g}"
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="3" class="{kind}"/>')
        if label:
            self.text(x + w / 2, y + h / 2 + FONT * 0.36, label, f"on-{kind}", "middle")

    def arrow(self, x0, y0, x1, y1):
        self.add(f'<path d="M{x0:g},{y0:g} L{x1:g},{y1:g}" class="arrow" marker-end="url(#tip)"/>')

    def line(self, x0, y0, x1, y1, kind="thin"):
        self.add(f'<path d="M{x0:g},{y0:g} L{x1:g},{y1:g}" class="{kind}"/>')

    def key(self, y, kinds):
        """A row of small boxes that says what the colours mean."""
        names = {"hold": "holds the lock", "spin": "spins for it", "work": "other work", "free": "the lock is free", "off": "has no pCPU"}
        x = 76
        for kind in kinds:
            name = kinds[kind] if isinstance(kinds, dict) else names[kind]
            self.add(f'<rect x="{x:g}" y="{y - 10:g}" width="16" height="12" rx="2" class="{kind}"/>')
            self.text(x + 21, y, name, "soft", size=13)
            x += 36 + wide(name, 13)

    def lanes(self, top, rows, left=76, height=26, gap=6):
        """Rows of boxes: each a name and (start, end, kind, label) on a scale from 0 to 100."""
        scale = (WIDTH - left - 8) / 100
        for i, (name, boxes) in enumerate(rows):
            y = top + i * (height + gap)
            self.text(left - 8, y + height / 2 + 5, name, "bold", "end")
            for start, end, kind, label in boxes:
                self.box(left + start * scale, y, (end - start) * scale - 1.5, height, kind, label)
        return lambda at: left + at * scale

    def save(self, name):
        body = "\n".join(self.parts)
        text = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" aria-labelledby="title desc">\n'
            f'<title id="title">{escape(self.title)}</title>\n<desc id="desc">{escape(self.description)}</desc>\n'
            f"<style>{STYLE}</style>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" class="head"/></marker></defs>\n'
            f'<rect width="{WIDTH}" height="{self.height}" class="paper"/>\n{body}\n</svg>\n'
        )
        (pathlib.Path(__file__).parent / name).write_text(text, encoding="utf-8")


def strict_queue():
    p = Picture(190, "A strict queue over two pCPUs", "Four vCPUs share two pCPUs. The queue is A, C, B, D. Each time the next one has no pCPU, the lock waits for a slice to end.")
    p.text(76, 20, "Queue: A, C, B, D.  A and C share pCPU 0, B and D share pCPU 1.", "soft", size=13)
    x = p.lanes(32, [
        ("pCPU 0", [(0, 5, "hold", "A"), (5, 25, "spin", "A"), (25, 30, "hold", "C"), (30, 50, "spin", "C"), (50, 75, "spin", "A"), (75, 100, "spin", "C")]),
        ("pCPU 1", [(0, 25, "spin", "B"), (25, 50, "spin", "D"), (50, 55, "hold", "B"), (55, 75, "spin", "B"), (75, 80, "hold", "D"), (80, 100, "spin", "D")]),
        ("lock", [(0, 5, "hold", "A"), (5, 25, "free", "waits for C"), (25, 30, "hold", "C"), (30, 50, "free", "waits for B"), (50, 55, "hold", "B"), (55, 75, "free", "waits for D"), (75, 80, "hold", "D"), (80, 100, "free", "waits for A")]),
    ])
    for at in (25, 50, 75):
        p.line(x(at) - 0.7, 28, x(at) - 0.7, 126, "line")
    for at, name in ((12.5, "slice 1"), (37.5, "slice 2"), (62.5, "slice 3"), (87.5, "slice 4")):
        p.text(x(at), 144, name, "soft", "middle", 13)
    p.key(174, ["hold", "spin", "free"])
    p.save("strict-queue.svg")


def holder():
    p = Picture(200, "Lock-holder preemption", "A loses its pCPU while it holds the lock. B, C and D spin until A runs again.")
    x = p.lanes(32, [
        ("pCPU 0", [(0, 14, "work", "A"), (14, 25, "hold", "A"), (25, 62, "spin", "C"), (62, 72, "hold", "A"), (72, 100, "work", "A")]),
        ("pCPU 1", [(0, 18, "work", "B"), (18, 25, "spin", "B"), (25, 62, "spin", "D"), (62, 72, "spin", "B"), (72, 82, "hold", "B"), (82, 100, "work", "B")]),
        ("lock", [(0, 14, "free", "free"), (14, 25, "hold", "A"), (25, 62, "hold", "A's, and A has no pCPU"), (62, 72, "hold", "A"), (72, 82, "hold", "B"), (82, 100, "free", "free")]),
    ])
    p.text(x(25), 20, "A's slice ends in its section", "blue", "middle", 13)
    p.line(x(25) - 0.7, 26, x(25) - 0.7, 126, "line")
    p.line(x(62) - 0.7, 26, x(62) - 0.7, 126, "line")
    p.text(x(62), 20, "A's next slice", "blue", "middle", 13)
    p.text(x(50), 148, "No vCPU can enter for a whole slice, whatever the lock.", "soft", "middle", 13)
    p.key(180, ["hold", "spin", "work"])
    p.save("holder-preemption.svg")


def waiter():
    p = Picture(200, "Lock-waiter preemption", "A releases the lock while B, the next in the queue, has no pCPU. The lock is free and no vCPU may take it.")
    x = p.lanes(32, [
        ("pCPU 0", [(0, 14, "spin", "B"), (14, 62, "spin", "D"), (62, 74, "hold", "B"), (74, 100, "work", "B")]),
        ("pCPU 1", [(0, 25, "hold", "A"), (25, 62, "spin", "A"), (62, 74, "spin", "C"), (74, 86, "hold", "C"), (86, 100, "work", "C")]),
        ("lock", [(0, 25, "hold", "A"), (25, 62, "free", "B's turn: B has no pCPU"), (62, 74, "hold", "B"), (74, 86, "hold", "C"), (86, 100, "free", "free")]),
    ])
    p.text(x(14), 20, "B's slice ends", "blue", "middle", 13)
    p.line(x(14) - 0.7, 26, x(14) - 0.7, 60, "line")
    p.line(x(62) - 0.7, 26, x(62) - 0.7, 126, "line")
    p.text(x(62), 20, "B's next slice", "blue", "middle", 13)
    p.text(x(25) + 8, 148, "A releases the lock here, but only B may take it.", "soft", "start", 13)
    p.arrow(x(25) - 0.7, 150, x(25) - 0.7, 126)
    p.key(180, ["hold", "spin", "work"])
    p.save("waiter-preemption.svg")


def park():
    p = Picture(190, "Spin, then park, and the kick", "B spins for the threshold, then halts, and its pCPU runs C. The unlock of A kicks B, which runs after a wake-up.")
    x = p.lanes(32, [
        ("pCPU 0", [(0, 52, "hold", "A"), (52, 56, "off", ""), (56, 100, "work", "A")]),
        ("pCPU 1", [(0, 12, "work", "B"), (12, 30, "spin", "B spins"), (30, 66, "work", "C"), (66, 78, "hold", "B"), (78, 100, "work", "B")]),
        ("lock", [(0, 52, "hold", "A"), (52, 66, "free", "free"), (66, 78, "hold", "B"), (78, 100, "free", "free")]),
    ])
    p.text(x(30), 20, "pv_wait: B halts", "blue", "middle", 13)
    p.line(x(30) - 0.7, 26, x(30) - 0.7, 90, "line")
    p.text(x(60), 20, "unlock: pv_kick(B)", "blue", "middle", 13)
    p.arrow(x(54), 58, x(65.5), 68)
    p.text(x(48), 146, "Sleep, kick and wake-up cost time: worth it for long waits only.", "soft", "middle", 13)
    p.key(176, {"hold": "holds the lock", "spin": "spins for it", "work": "other work", "off": "in the VMM"})
    p.save("spin-then-park.svg")


def stealing():
    p = Picture(190, "Hybrid stealing and the pending bit", "While the head of the queue sleeps, running vCPUs may steal the lock. The head sets the pending bit when it runs; then no vCPU may steal.")
    x = p.lanes(32, [
        ("pCPU 0", [(0, 14, "hold", "T"), (14, 24, "work", "T"), (24, 34, "hold", "T"), (34, 46, "work", "T"), (46, 66, "hold", "T"), (66, 100, "spin", "T queues")]),
        ("pCPU 1", [(0, 40, "work", "another vCPU"), (40, 66, "spin", "H spins"), (66, 80, "hold", "H"), (80, 100, "work", "H")]),
        ("pending", [(0, 52, "off", "0: any running vCPU may steal"), (52, 66, "set", "1: closed"), (66, 100, "off", "0")]),
    ])
    p.text(x(24), 20, "T steals: H, the head, sleeps", "blue", "middle", 13)
    p.text(x(60), 20, "H's turn comes", "blue", "middle", 13)
    p.line(x(66) - 0.7, 26, x(66) - 0.7, 126, "line")
    p.text(x(48), 146, "Stealing keeps the lock busy; the pending bit bounds how long the head waits.", "soft", "middle", 13)
    p.key(176, ["hold", "spin", "work"])
    p.save("stealing.svg")


def extension():
    p = Picture(250, "A slice extension", "Without an extension the slice of A ends in its section. With one, A leaves its section first, then gives its pCPU back.")
    p.text(76, 20, "Without: the slice ends inside the section", "bold")
    x = p.lanes(32, [
        ("pCPU 0", [(0, 18, "work", "A"), (18, 30, "hold", "A"), (30, 72, "spin", "C"), (72, 82, "hold", "A"), (82, 100, "work", "A")]),
        ("lock", [(0, 18, "free", "free"), (18, 30, "hold", "A"), (30, 72, "hold", "A's, and A has no pCPU"), (72, 82, "hold", "A"), (82, 100, "free", "free")]),
    ])
    p.line(x(30) - 0.7, 26, x(30) - 0.7, 92, "line")
    p.text(76, 118, "With: up to 50 us more for a vCPU that holds a lock", "bold")
    p.lanes(130, [
        ("pCPU 0", [(0, 18, "work", "A"), (18, 30, "hold", "A"), (30, 40, "hold", ""), (40, 50, "work", "C"), (50, 62, "hold", "C"), (62, 100, "work", "C")]),
        ("lock", [(0, 18, "free", "free"), (18, 30, "hold", "A"), (30, 40, "hold", ""), (40, 50, "free", "free"), (50, 62, "hold", "C"), (62, 100, "free", "free")]),
    ])
    p.line(x(30) - 0.7, 126, x(30) - 0.7, 190, "line")
    p.text(x(30), 206, "slice ends", "blue", "middle", 13)
    p.text(x(42), 206, "A yields", "blue", "start", 13)
    p.key(236, ["hold", "spin", "work"])
    p.save("slice-extension.svg")


def hint():
    p = Picture(220, "vcpu_is_preempted", "The hypervisor writes a byte when it takes the owner off its pCPU. A waiter reads the byte, stops spinning and sleeps.")
    x = p.lanes(32, [
        ("pCPU 0", [(0, 30, "hold", "A"), (30, 74, "work", "C"), (74, 86, "hold", "A"), (86, 100, "work", "A")]),
        ("flag of A", [(0, 30, "off", "0"), (30, 74, "set", "1: A has no pCPU"), (74, 100, "off", "0")]),
        ("pCPU 1", [(0, 34, "spin", "B spins"), (34, 88, "work", "D works; B sleeps"), (88, 100, "hold", "B")]),
        ("no hint", [(0, 86, "spin", "without the hint B spins for its whole slice"), (86, 100, "hold", "B")]),
    ])
    p.text(x(30), 20, "A's slice ends", "blue", "middle", 13)
    p.arrow(x(31.5), 91, x(33.5), 106)
    p.text(x(48), 178, "The host writes the flag; the guest only reads it, without an exit.", "soft", "middle", 13)
    p.key(206, ["hold", "spin", "work"])
    p.save("vcpu-is-preempted.svg")


def folding():
    p = Picture(250, "Folding", "Two guests with four vCPUs each share four pCPUs. A guest that folds runs its threads on two vCPUs, so that no vCPU has to wait for a pCPU.")
    for left, title, ours in ((20, "Not folded: 8 vCPUs, 4 pCPUs", 4), (318, "Folded: 4 busy vCPUs, 4 pCPUs", 2)):
        p.text(left, 22, title, "bold")
        for guest, y in (("guest 1", 38), ("guest 2", 84)):
            p.text(left, y + 20, guest, "soft", size=13)
            for i in range(4):
                busy = i < ours
                p.box(left + 60 + i * 48, y, 44, 30, "work" if busy else "free", "busy" if busy else "idle")
        p.text(left, 160, "pCPUs", "soft", size=13)
        for i in range(4):
            p.box(left + 60 + i * 48, 140, 44, 30, "spin" if ours == 4 else "work", "2" if ours == 4 else "1")
    p.line(304, 14, 304, 180)
    p.text(300, 200, "Numbers: busy vCPUs that share the pCPU.", "soft", "middle", 13)
    p.text(300, 222, "A guest sees that it is time to fold by its steal time.", "soft", "middle", 13)
    p.save("folding.svg")


# From docs/pictures/timeline.toml on the simulated machine skylake-8s, two pCPUs, four vCPUs each (24 November 2026, commit c4a8911).
# One row for each vCPU, one letter for each half slice: `#` on a pCPU, `h` off with the lock, `w` off in the queue, `o` off elsewhere, `s` asleep.
TIMELINE = {
    "ticket": [
        ("980000019800000198000001", ".wwwwwww.wwwwwww.wwwwwww"), ("069200000692000000069200", "ww.wwwwwww.wwwwwwwww.www"),
        ("000198000198000001980000", "wwww.wwwww.wwwwwww.wwwww"), ("000692000000069200000692", "wwwww.wwwwwwww.wwwwwww.w"),
        ("019800000001980000019800", "ww.wwwwwwwww.wwwwwww.www"), ("000006920006920006920000", "wwwwww.fffff.wwwww.wwwww"),
        ("000001980000019800000198", "wwwwww.wwwwwww.wwwwwww.f"), ("920000069200000692000006", ".wwwwwww.wwwwwww.wwwwwww"),
    ],
    "PV qspinlock": [
        ("000000000001990000000199", "oooooossssss.ooossssrr.h"), ("960298980000000000011000", ".ooo.h.hhhhhhhhhhhhhssrr"),
        ("039600000000019800019800", "oo.ooossssssss.sssrr.ooo"), ("999700000000019998000000", ".o.ooossssssrr.h.ooossss"),
        ("000000000199980000007920", "oooooossrr.h.ooosssss.oo"), ("000002999996000001980000", "ssssrr.o.o.sssssrr.wssss"),
        ("000297019800000000000079", "rrrr.rrr.ooooooossssssr."), ("000000000001000199980000", "oooooossssrrssrr.o.hssss"),
    ],
}


def timeline():
    p = Picture(284, "Where each vCPU was", "Two maps of eight vCPUs on two pCPUs over 12 milliseconds. Under the ticket lock every vCPU is taken off in the queue; under the PV qspinlock most sleep.")
    kinds = {"#": "work", "h": "hold", "w": "spin", "f": "spin", "o": "off", "r": "off", "s": "free"}
    for k, (name, rows) in enumerate(TIMELINE.items()):
        left = 34 + k * 290
        p.text(left, 20, name, "bold")
        for i, (on, off) in enumerate(rows):
            y = 32 + i * 22
            p.text(left - 6, y + 15, str(i), "soft", "end", 13)
            for j, (tenths, letter) in enumerate(zip(on, off)):
                kind = kinds["#" if int(tenths) >= 5 or letter == "." else letter]
                if kind != "free":
                    p.add(f'<rect x="{left + j * 11:g}" y="{y:g}" width="10" height="20" class="{kind}"/>')
            p.line(left, y + 20.7, left + 264, y + 20.7)
        p.text(left, 226, "0", "soft", size=13)
        p.text(left + 264, 226, "12 ms", "soft", "end", 13)
    p.key(250, {"work": "on a pCPU", "hold": "off, with the lock", "spin": "off, in the queue", "off": "off, neither"})
    p.text(76, 274, "empty: asleep", "soft", size=13)
    p.save("timeline.svg")


def word():
    p = Picture(226, "The word of the queue spinlock", "A 32-bit word: a locked byte, a pending byte, and the tail of the queue in the upper half. Five of its states, and who waits in them.")
    p.text(84, 22, "one 32-bit word", "bold")
    for left, width, kind, label in ((84, 226, "work", "tail: last vCPU in the queue"), (312, 124, "spin", "pending: 0 or 1"), (438, 146, "hold", "locked: 0, 1, slow")):
        p.box(left, 32, width, 30, kind, label)
    rows = [
        ("0, 0, 0", "free: one compare-exchange takes it"),
        ("0, 0, 1", "held, no waiter"),
        ("0, 1, 1", "held; the first waiter spins on the word, without a node"),
        ("n, 0, 1", "held; a queue of nodes, each waiter spins on its own"),
        ("n, 1, 1", "PV: the head of the queue has closed the lock to thieves"),
    ]
    p.text(84, 88, "Its states, as tail, pending, locked:", "soft", size=13)
    for i, (state, text) in enumerate(rows):
        p.text(84, 112 + i * 26, state, "bold")
        p.text(150, 112 + i * 26, text)
    p.save("qspinlock-word.svg")


def blocks():
    p = Picture(230, "Blocks, cells and ratios", "Three blocks. Each has the lock-free cell first and the arms in shuffled order. A ratio is made of two cells of one block.")
    orders = [("PV", "tas", "PV (A/A)"), ("tas", "PV (A/A)", "PV"), ("PV (A/A)", "PV", "tas")]
    for i, order in enumerate(orders):
        y = 20 + i * 46
        p.text(76, y + 21, f"block {i + 1}", "bold", "end")
        p.box(90, y, 96, 30, "off", "lock-free")
        for j, arm in enumerate(order):
            p.box(192 + j * 90, y, 84, 30, "work" if arm == "PV" else "spin" if arm == "tas" else "free", arm)
        p.text(470, y + 20, f"ratio {i + 1} = PV / tas", "blue", size=13)
    p.text(90, 176, "1. The lock-free cell gives the ideal of its block.", "soft", size=13)
    p.text(90, 196, "2. PV / PV (A/A) must show no difference.", "soft", size=13)
    p.text(90, 216, "3. Estimate and interval come from the ratios, one for each block.", "soft", size=13)
    p.save("blocks.svg")


def rooms(crate):
    """The rooms of a crate from the top down; the tables of docs/architecture.md have them from the ground up."""
    page = (pathlib.Path(__file__).parent.parent / "architecture.md").read_text(encoding="utf-8")
    table = page.split(f"| `{crate}src`, from the ground up |")[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)[::-1]


# The step of a run in a room.
STEPS = {
    ("bench/", "commands"): 1, ("bench/", "experiment"): 2, ("bench/", "measure"): 3, ("vmm/", "engines"): 4, ("vmm/", "machine"): 5,
    ("vmm/", "sched"): 6, ("guest/", "workloads"): 6, ("vmm/", "run"): 7, ("bench/", "record"): 8, ("bench/", "results"): 9, ("bench/", "show"): 10,
}


def architecture():
    p = Picture(560, "Crates and rooms of Haltkick", "bench imports vmm; vmm imports vmm/sim; vmm and guest import hypercalls; guest imports locks, mm and grants. Numbers show the way of a run.")
    height, bottom = 24, 50 + 11 * 28
    for k, crate in enumerate(("bench/", "vmm/", "guest/")):
        left = 8 + k * 202
        p.add(f'<rect x="{left}" y="8" width="180" height="{bottom - 4}" rx="5" class="line"/>')
        p.text(left + 10, 32, crate, "bold", size=15)
        for i, room in enumerate(rooms(crate)):
            step = STEPS.get((crate, room))
            p.box(left + 10, 44 + i * 28, 160, height, "work" if step else "off", f"{step}  {room}" if step else room)
    p.arrow(189, 112, 209, 112)
    p.box(210, 386, 130, 28, "free", "vmm/sim/")
    p.box(378, 386, 190, 28, "free", "locks, mm, grants")
    p.box(210, 440, 382, 28, "free", "hypercalls/: what guest and VMM share")
    for x, end in ((275, 385), (487, 385), (366, 439), (578, 439)):
        p.arrow(x, bottom + 5, x, end)
    for i, line in enumerate((
        "A room imports only from those below it, a crate along the arrows.",
        "1 read the command, 2 plan the cells, 3 pick the next cell, 4 choose the engine,",
        "5 build the VM, 6 run the vCPUs, which take locks, 7 watch and collect,",
        "8 make the record, 9 append it to runs.jsonl, 10 print the table",
    )):
        p.text(300, 494 + i * 19, line, "soft", "middle", 13)
    p.save("../architecture.svg")


def worst():
    """Each source line of five locks by its largest loss, from docs/results/worst."""
    kept = pathlib.Path(__file__).parent.parent / "results/worst/figures.tsv"
    lines = [line.split("\t") for line in kept.read_text(encoding="utf-8").splitlines()]
    locks = {}
    for name, setting, loss, *_ in lines:
        if name.startswith("loss at "):
            at, lock = name.removeprefix("loss at ").rsplit(" of ", 1)
            locks.setdefault(lock, []).append((float(loss), at.split(" < ")[0], "noise=1" in setting))
    order = [lock for lock in ("qspinlock", "qspinlock-wc", "mutex", "rwsem", "owner-yield") if lock in locks]
    most = max(loss for each in locks.values() for loss, _, _ in each)
    left, scale = 122, (WIDTH - 142) / (int(most) + 1)
    bottom = 30 + 44 * len(order)
    p = Picture(bottom + 76, "What a lost CPU costs, by source line", "One dot for each source line of five locks, by the time lost over the time that the vCPU is off. The worst line of each lock is named.")
    for tick in range(0, int(most) + 2, 2):
        p.line(left + tick * scale, 16, left + tick * scale, bottom, "thin")
        p.text(left + tick * scale, bottom + 18, str(tick), "soft", "middle", 13)
    for i, lock in enumerate(order):
        y = 40 + i * 44
        p.text(left - 14, y + 5, lock, "bold", "end")
        for j, (loss, _, noise) in enumerate(sorted(locks[lock])):
            kind = "off" if noise else "hold"
            p.add(f'<circle cx="{left + max(loss, 0) * scale:.1f}" cy="{y - 6 + j % 4 * 4:g}" r="3.4" class="{kind}"/>')
        loss, at, _ = max(dot for dot in locks[lock] if not dot[2])
        p.text(min(left + loss * scale, WIDTH - 8), y + 25, at, "soft", "end", 13)
    p.text(WIDTH / 2 + 50, bottom + 40, "pCPU time lost, times the absence", "", "middle", 13)
    p.key(bottom + 64, {"hold": "costs more than the noise", "off": "within the noise"})
    p.save("worst.svg")


if __name__ == "__main__":
    for draw in (strict_queue, holder, waiter, park, stealing, extension, hint, folding, timeline, word, blocks, architecture, worst):
        draw()
