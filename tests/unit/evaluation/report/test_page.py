"""The page: what it says in which order, that nothing breaks out of it, and what averages hide."""

import base64
import dataclasses
import gzip
import html
import json
import re
from html.parser import HTMLParser

import pytest

from tasks.evaluation.report import page as report_page
from tasks.evaluation.report.page import all_figures, vega_script
from tasks.evaluation.results.summary import Summary
from tests.unit.evaluation.conftest import Records, Row, Sweeps, records, summary_record


def page(summary: Summary, rows: Records, figures: bool = False) -> str:
    return report_page.page(summary, rows, all_figures(summary, rows) if figures else {})


class Outline(HTMLParser):
    """Sections in order, attributes that load something, panels of figures, embedded data, and the words between tags."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.sections: list[str] = []
        self.specs: list[str] = []
        self.words: list[str] = []
        self.panels: list[tuple[str | None, str | None]] = []
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "srcset", "data", "action")]
        self.loads += [f"{tag} {named['href']}"] if tag == "link" or not (named.get("href") or "#").startswith("#") else []
        self.sections += [named["id"] or ""] if tag == "section" else []
        self.panels += [(named["data-figure"], named["data-panel"])] if "data-panel" in named else []
        self._within = named.get("type") or "code" if tag in ("script", "style") else ""
        self.specs += [""] if self._within == "application/json" else []

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "application/json":
            self.specs[-1] += data
        elif not self._within:
            self.words.append(data)


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    return found


@pytest.fixture(scope="module")
def whole(full_record: Summary, full_rows: Records) -> str:
    return page(full_record, full_rows, figures=True)


def test_it_opens_with_the_verdict_and_answers_in_order(whole: str, full_summary: Row) -> None:
    found = outline(whole)
    order = ["verdict", "deploy", "cost", "believe", "change", "figures", "examples", "points", "tables", "definitions"]
    assert found.sections == order
    assert html.escape(full_summary["verdict"]["text"], quote=False) in whole.replace("&#39;", "'").replace("&#34;", '"')
    words = " ".join(found.words)
    assert words.index(full_summary["verdict"]["headline"]) < words.index(full_summary["verdict"]["text"])
    for line in (*full_summary["verdict"]["evidence"], *full_summary["verdict"]["changes"]):
        assert line in words
    assert "2.10 %" in words and "4.60 %" in words, "the error of the predictions"
    assert "a CPU of two cores" in words


def test_it_needs_no_network_and_is_small(whole: str) -> None:
    assert outline(whole).loads == []
    script = gzip.decompress(base64.b64decode(vega_script())).decode()
    assert vega_script() in whole and "vegaEmbed" in script, "the script that draws the charts is in the page"
    assert not re.search(r"https?://|@import|url\(", whole)
    assert len(whole.encode()) < 800_000


def test_data_cannot_break_out(sweeps: Sweeps, whole: str) -> None:
    assert "<script>alert" not in whole and "&lt;script&gt;alert" in whole
    hostile = "</script><script>alert(1)</script>"
    changed = {
        arm: [{**row, "settings": {**row["settings"], hostile: 1}} if row["method"] == "bild" else row for row in rows]
        for arm, rows in sweeps.items()
    }
    summary = summary_record("bleu", changed, task=hostile)
    summary = dataclasses.replace(summary, recommendation=dataclasses.replace(summary.recommendation, text=hostile))
    text = page(summary, {arm: records(rows) for arm, rows in changed.items()}, figures=True)
    assert "<script>alert(1)" not in text
    assert hostile in " ".join(outline(text).words)


def test_every_panel_is_embedded_with_its_data(whole: str) -> None:
    found = outline(whole)
    (charts,) = [json.loads(text) for text in found.specs]
    assert found.panels == [(name, str(place)) for name, panels in charts["panels"].items() for place in range(len(panels))]
    specs = [spec for panels in charts["panels"].values() for spec in panels]
    assert len(charts["panels"]) == 13 and len(specs) == 28
    used = {(layer.get("data") or spec["data"])["name"] for spec in specs for layer in spec["layer"]}
    assert used == charts["datasets"].keys()
    pointed = {record["point"] for name in used for record in charts["datasets"][name] if "point" in record}
    assert pointed <= {int(index) for index in re.findall(r'<tr id="point-(\d+)"', whole)}, "each tooltip finds its row"


def test_every_point_has_a_row_with_prediction_apart_from_measurement(whole: str, full_summary: Row) -> None:
    body = whole.split('<table id="all">')[1].split("</table>")[0]
    rows = [[cell.strip() for cell in row.split("<td>")[1:]] for row in body.split("<tr ")[1:]]
    assert len(rows) == len(full_summary["points"])
    timed, untimed = body.count('class="timed'), body.count('class="untimed')
    assert (timed, untimed) == tuple(sum(p["timed"] is wanted for p in full_summary["points"]) for wanted in (True, False))
    measured = [cells[5].replace("\u00a0", " ") for cells in rows]
    assert measured.count("–") == untimed
    best = full_summary["points"][full_summary["verdict"]["point"]]
    assert measured[0].startswith(f"{best['speedup']:.2f}×") and body.count(" best") == 1


def test_published_numbers_are_marked(whole: str) -> None:
    first = whole.split('id="cost"')[1].split("</table>")[0]
    cells = re.findall(r'<td class="published">(.*?)</td>', first)
    assert "40.33 · 1.43×" in cells
    assert not re.search(r'<td class="">40\.33', first)


def test_without_a_published_number_the_page_says_so_once(sweeps: Sweeps) -> None:
    rows = {arm: records(rows) for arm, rows in sweeps.items()}
    text = page(summary_record("bleu", sweeps), rows)
    assert text.count("no number in the papers is of this corpus") == 1
    assert '<td class="published">' not in text and "as published" not in text


def test_tokens_are_coloured_by_who_proposed_them(whole: str) -> None:
    shown = whole.split('id="examples"')[1].split("</section>")[0]
    assert '<span class="corrected" title="corrected">leaves </span>' in shown
    assert '<span class="large" title="large">half past </span>' in shown
    assert '<span class="small" title="small">the </span>' in shown


def test_sections_without_data_are_left_out(sweeps: Sweeps) -> None:
    alone = {arm: rows[:1] for arm, rows in sweeps.items()}
    found = outline(page(summary_record("bleu", alone), {arm: records(rows) for arm, rows in alone.items()}, figures=True))
    assert found.sections == ["verdict", "deploy", "cost", "believe", "change", "figures", "points", "definitions"]
    assert found.panels == [("pareto", "0"), ("everything", "0")]
    assert "The vanilla large model: no tested setting is shown to be faster within the margins." in " ".join(found.words)


def test_what_test_contradicts_is_red_and_says_so_wherever_it_stands(sweeps: Sweeps) -> None:
    # On test the fastest choice, aligned BiLD, loses more than both margins.
    (row,) = [row for row in sweeps["aligned"] if (row["split"], row["method"]) == ("test", "bild")]
    row["difference_bounds"] = {"lower": -1.9, "upper": -1.2, "compared": 1}
    text = page(summary_record("bleu", sweeps), {arm: records(rows) for arm, rows in sweeps.items()})
    says = '<span class="says contradicted">'
    sections = {part.split('"')[0]: part for part in text.split('<section id="')[1:]}
    assert f"{says}no loss: contradicted</span>" in sections["points"]
    for name in ("deploy", "cost"):
        assert f"{says}no loss: contradicted: loses more than 0.5 points</span>" in sections[name] or (
            f"{says}contradicted: loses more than 0.5 points</span>" in sections[name]
        ), name
    tables = sections["cost"].split("<table>")[1:]
    red = [[row for row in table.split("<tr ")[1:] if row.startswith('class="contradicted"')] for table in tables]
    assert [len(found) for found in red] == [2, 2] and all(says in row for found in red for row in found)
    assert all("aligned" in row for found in red for row in found)
    # Splits have tables of their own, and test comes first.
    cost = text.split('<section id="cost"')[1].split("</section>")[0]
    on_test, on_validation = cost.split("<table>")[1:]
    assert cost.index("on test, which played no part in the choice") < cost.index("on validation, where the choices were made")
    assert "1.55×" in on_test and "1.60×" not in on_test and "1.60×" in on_validation and "1.55×" not in on_validation
