"""Bars of measured figures as one SVG, for both colour schemes of a page: a panel for each column of a table.

plot.svg("what it shows", [("cached tokens", [("kvatlas", "95.8 %"), …]), …], ours="kvatlas")
"""

from html import escape

_WIDTH, _LABEL, _BAR, _GAP, _TOP = 300, 104, 15, 7, 44
_STYLE = """text { font: 12px system-ui, sans-serif; fill: #1f2328 } .quiet { fill: #59636e } .title { font-weight: 600 }
 .bar { fill: #b7bec7 } .ours { fill: #2474b8 }
 @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .quiet { fill: #9198a1 } .bar { fill: #4a525c } .ours { fill: #58a6e6 } }"""


def number(text):
    return float(text.split()[0].replace(",", ""))


def svg(title, panels, ours):
    """`panels`: (title, [(name, figure as text)]), each beginning at 0."""
    rows = max(len(bars) for _, bars in panels)
    height = _TOP + rows * (_BAR + _GAP) + 6
    width = len(panels) * _WIDTH
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
           f'aria-label="{escape(title)}">', f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>"]
    for at, (name, bars) in enumerate(panels):
        left = at * _WIDTH
        out.append(f'<text class="title" x="{left}" y="18">{escape(name)}</text>')
        most = max(number(figure) for _, figure in bars) or 1
        room = _WIDTH - _LABEL - 62
        for row, (who, figure) in enumerate(bars):
            y = _TOP + row * (_BAR + _GAP)
            long = max(1, round(room * number(figure) / most))
            kind = "bar ours" if who == ours else "bar"
            out.append(f'<text x="{left}" y="{y + 12}"{"" if who == ours else " class=" + chr(34) + "quiet" + chr(34)}>{escape(who)}</text>')
            out.append(f'<rect class="{kind}" x="{left + _LABEL}" y="{y}" width="{long}" height="{_BAR}" rx="2"/>')
            out.append(f'<text x="{left + _LABEL + long + 5}" y="{y + 12}">{escape(figure)}</text>')
    return "\n".join(out) + "\n</svg>\n"
