"""What somebody else changes is read back, or announced: there is no moment in between."""

from collections.abc import Iterator

import pytest

from cni_agent.backends import Name, backend
from cni_agent.kernel import transaction
from cni_agent.kernel.failure import NotAsWritten
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netlink import Channel
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.notices import Notices
from cni_agent.kernel.stamp import Stamp
from tests.kernel.tools import DEFAULT, sh

pytestmark = [pytest.mark.kernel, pytest.mark.parametrize("name", ["iptables-nft", "nftables"])]


@pytest.fixture
def notices() -> Iterator[Notices]:
    made = Notices()
    yield made
    made.close()


def test_what_we_write_is_not_announced_and_what_comes_after_is(name: Name, notices: Notices) -> None:
    program = backend(name)
    ruleset = program.ruleset(DEFAULT)
    with Netns.scratch() as pod:
        for outcome in ("applied", "unchanged"):
            with Inside(pod, notices) as inside:
                assert program.apply(inside, ruleset) == outcome
            assert notices.transactions() == 0, outcome
        sh(pod, "nft flush ruleset")
        assert notices.transactions() == 1
        with Inside(pod, notices) as inside:
            assert program.apply(inside, ruleset) == "applied"
        assert notices.transactions() == 0
        sh(pod, "nft add table ip theirs")
        with Inside(pod, notices) as inside:
            assert program.check(inside, ruleset) == ()
        assert notices.transactions() == 0, "it was there when the rules were read"
        sh(pod, "nft delete table ip theirs")
        assert notices.transactions() == 1


def test_a_change_after_reading_back_is_announced(
    name: Name, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = backend(name)
    ruleset = program.ruleset(DEFAULT)
    matches = Stamp.matches
    with Netns.scratch() as pod, Inside(pod, notices) as inside:
        program.apply(inside, ruleset)

        def disturbed(stamp: Stamp, channel: Channel) -> bool:
            found = matches(stamp, channel)
            sh(pod, "nft flush ruleset")
            return found

        monkeypatch.setattr(Stamp, "matches", disturbed)
        assert program.check(inside, ruleset) == ()
        assert notices.transactions() == 1
        assert program.apply(inside, ruleset) == "applied"
        assert notices.transactions() == 1


def test_a_change_between_writing_and_listening_is_read_back(
    name: Name, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = backend(name)
    ruleset = program.ruleset(DEFAULT)
    program._mint(ruleset)  # type: ignore[attr-defined]  # which commits as well
    commit = transaction._commit
    with Netns.scratch() as pod, Inside(pod, notices) as inside:

        def disturbed(*arguments: object) -> bool:
            committed = commit(*arguments)  # type: ignore[arg-type]
            sh(pod, "nft flush ruleset")
            return committed

        with monkeypatch.context() as patched:
            patched.setattr(transaction, "_commit", disturbed)
            with pytest.raises(NotAsWritten):
                program.apply(inside, ruleset)
        assert notices.transactions() == 0, "it was not announced: only reading back tells of it"
        assert program.apply(inside, ruleset) == "applied"
