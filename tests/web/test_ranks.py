"""Several ranks on the page in a real browser: side by side, and a single one."""

from __future__ import annotations

from ampmon import wire
from batches import Trainer
from posted import post
from web.reader import Reader


LEDGER = "[data-ledger=skips] tbody"
RANK = "select[aria-label=Rank]"


def test_a_reader_sees_which_rank_disagrees_and_looks_at_it_alone(reader: Reader) -> None:
    """The strips name the step where ranks disagree. A chosen rank is in the address, and the charts show it alone."""
    lead = Trainer(world_size=2)
    other = Trainer(run_id=lead.run_id, rank=1, world_size=2)
    post(reader.server, lead.batch(lead.updates(20, sampled=range(20))))
    post(reader.server, other.batch(other.updates(20, skipped=[7])))
    reader.open(f"#/runs/{lead.run_id}")
    reader.wait("the chart of the scale", reader.points)
    reader.tab("system")
    said = "first at step 7"
    reader.wait("the ranks", lambda: said in reader.caption("ranks"))
    reader.wait("all ranks' skips", lambda: reader.caption("skips").startswith("1 of 20 skipped"))
    reader.page.locator(RANK).select_option("0")
    reader.wait("those of rank 0", lambda: reader.caption("skips").startswith("No step skipped"))
    assert "rank=0" in reader.page.url


def test_a_row_of_the_ledger_is_of_all_ranks_that_skipped(reader: Reader) -> None:
    """Each row covers all four ranks and their culprit, also below the first page, although one rank came later."""
    lead = Trainer(world_size=4)
    ranks = [lead, *(Trainer(run_id=lead.run_id, rank=rank, world_size=4) for rank in (1, 2, 3))]
    blameless = wire.OptimizerStep(optimizer="SGD", path="plain", skipped=True)
    for trainer in ranks[:3]:
        updates = trainer.updates(19, skipped=range(19))
        updates.append(trainer.update(skipped=True, optimizers=(blameless,)))
        post(reader.server, trainer.batch(updates))
    reader.open(f"#/runs/{lead.run_id}")
    reader.tab("skips")
    newest = f"{LEDGER} tr:first-child"
    reader.wait("three ranks", lambda: "all 3 ranks" in reader.text(newest))
    assert "not known" in reader.text(f"{newest} [data-name='First to overflow']")
    said = f"{LEDGER} [data-name=Optimizer]"
    assert len(reader.texts(said)) == 10
    reader.page.get_by_role("button", name="Older").click()
    reader.wait("the others", lambda: len(reader.texts(said)) == 20)
    post(reader.server, ranks[3].batch(ranks[3].updates(2, skipped=range(2))))
    reader.wait("the first steps", lambda: reader.texts(said)[18:] == ["SGD, all 4 ranks"] * 2)
    post(reader.server, ranks[3].batch(ranks[3].updates(18, skipped=range(18))))
    reader.wait("all ranks", lambda: reader.texts(said) == ["SGD, all 4 ranks"] * 20)
    assert "head.weight 3 inf" in reader.text(f"{newest} [data-name='First to overflow']")
