"""Draws the demo's rows: one bar for each request; its length is the time to the first token."""

from xml.sax.saxutils import escape

WIDTH, LABEL, RIGHT, TOP, STEP, BAR = 940, 284, 300, 104, 38, 22
TIERS = {"none": "computed", "worker": "from the worker's memory", "gpu": "from the store's GPU",
         "host": "from the store's RAM", "disk": "from the store's disk"}

STYLE = """
  .page { fill: #ffffff } .ink { fill: #1d2430 } .soft { fill: #667085 } .line { stroke: #e4e7ec }
  .cold { fill: #98a2b3 } .worker { fill: #f79009 } .host { fill: #e8590c } .gpu { fill: #e8590c }
  .disk { fill: #b93815 } .bad { fill: #d92d20 }
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14181f } .ink { fill: #eceff4 } .soft { fill: #9aa4b2 } .line { stroke: #2b323d }
  }
"""


def text(x, y, content, kind="ink", size=14, anchor="start", weight=400):
    return (f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" font-size="{size}" '
            f'font-weight="{weight}" text-anchor="{anchor}">{escape(content)}</text>')


def milliseconds(value):
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"


def bar(row, y, scale):
    cold = row["expected"] == "cold"
    kind = "cold" if cold else row["source_tier"]
    length = max(3.0, row["ttft_ms"] * scale)
    same = row["text_equal"] and row["logits_equal"]
    note = "cold" if cold else f"{row['speedup']:.0f}x sooner, {TIERS[row['source_tier']]}"
    if not same:
        note += ", ANSWER DIFFERS"
    middle = y + BAR / 2 + 5
    return [
        text(LABEL - 14, middle, row["name"], anchor="end"),
        f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" rx="4" '
        f'class="{kind if cold or same else "bad"}"/>',
        text(LABEL + length + 9, middle, milliseconds(row["ttft_ms"]), weight=600),
        text(LABEL + length + 76, middle, note, "soft", 12.5),
    ]


def draw(rows, prefix_tokens):
    """Returns the picture as SVG text."""
    height = TOP + STEP * len(rows) + 46
    longest = max(row["ttft_ms"] for row in rows)
    scale = (WIDTH - LABEL - RIGHT + 180) / longest
    warm = [row for row in rows if row["expected"] == "warm"]
    same = all(row["text_equal"] and row["logits_equal"] for row in warm)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        "<title>Time to first token, cold and from the cache</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="12"/>',
        text(32, 44, "Time to first token", size=22, weight=650),
        text(32, 70, f"A shared prefix of {prefix_tokens} tokens, computed once, then restored by "
             "three workers", "soft", 14),
        f'<line x1="{LABEL}" y1="{TOP - 14}" x2="{LABEL}" y2="{TOP + STEP * len(rows)}" '
        'class="line"/>',
    ]
    for i, row in enumerate(rows):
        parts += bar(row, TOP + STEP * i, scale)
    verdict = ("Every warm answer equals the cold one: same text, same logits, bit for bit."
               if same else "Some warm answers differ from the cold ones.")
    parts += [text(32, height - 18, verdict, "soft" if same else "bad", 13), "</svg>"]
    return "\n".join(parts) + "\n"
