package e2e

import (
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
)

// entry is an event of the log.
type entry struct {
	*nostr.Event
	seq uint64
}

// reply is what a process without an index was told when it asked which events are accepted.
type reply struct {
	asker string   // the inbox of its connection
	asked uint64   // the end of the log that the question named
	at    uint64   // how far the answering process had read the log
	ids   []string // that it asked about
	known []bool   // what it was told of each
}

// stale says what is wrong with replies. An event must not be told to be unknown if it stands in
// the log no later than where the question names its end, or than where it was read to; nor to be
// known if it never came.
func stale(replies []reply, log map[string]entry) (wrong []string) {
	for _, r := range replies {
		if r.at < r.asked {
			wrong = append(wrong, fmt.Sprintf("a question that names %d was answered at %d", r.asked, r.at))
		}
		for n, id := range r.ids {
			e, accepted := log[id]
			switch {
			case r.known[n] && !accepted:
				wrong = append(wrong, fmt.Sprintf("%s was told to be known, and is not in the log", id))
			case !r.known[n] && accepted && e.seq <= max(r.asked, r.at):
				wrong = append(wrong, fmt.Sprintf("%s has the sequence %d, and was told to be unknown at %d to a question that names %d", id, e.seq, r.at, r.asked))
			}
		}
	}
	return wrong
}

// verified counts how many events relay workers verified at most: those that they were told to be
// unknown. again is how many of these had been told so before, and alone how many of them to the
// same process.
func verified(replies []reply) (most, again, alone int) {
	all, own := map[string]bool{}, map[string]bool{}
	for _, r := range replies {
		for n, id := range r.ids {
			if r.known[n] {
				continue
			}
			most++
			if all[id] {
				again++
			}
			if own[r.asker+id] {
				alone++
			}
			all[id], own[r.asker+id] = true, true
		}
	}
	return most, again, alone
}

// visit is what a subscriber got of one REQ until the connection ended.
type visit struct {
	gateway string
	filter  nostr.Filter // without a limit that matters
	ids     []string     // in the order in which they came
	stored  bool         // all stored events had come
}

// unfaithful says what is wrong with a visit: an event came twice, or is not in the log or not what
// was asked for, or one is missing that stands in the log before another that came.
func unfaithful(v visit, log map[string]entry) (wrong []string) {
	came, reach := map[string]bool{}, uint64(0)
	for _, id := range v.ids {
		e, accepted := log[id]
		switch {
		case came[id]:
			wrong = append(wrong, fmt.Sprintf("%s sent %s twice", v.gateway, id))
		case !accepted:
			wrong = append(wrong, fmt.Sprintf("%s sent %s, which is not in the log", v.gateway, id))
		case !v.filter.Matches(e.Event):
			wrong = append(wrong, fmt.Sprintf("%s sent %s, which was not asked for", v.gateway, id))
		}
		came[id], reach = true, max(reach, e.seq)
	}
	if !v.stored {
		return wrong // newest first: what is missing at the end was still to come
	}
	for id, e := range log {
		if e.seq <= reach && !came[id] && v.filter.Matches(e.Event) {
			wrong = append(wrong, fmt.Sprintf("%s sent what stands at %d in the log, and not %s at %d", v.gateway, reach, id, e.seq))
		}
	}
	return wrong
}

// TestAudit: what must not happen is found.
func TestAudit(t *testing.T) {
	t.Parallel()
	log := map[string]entry{}
	for n, id := range []string{"a", "b", "c", "d"} {
		log[id] = entry{&nostr.Event{ID: id, Kind: 1621, CreatedAt: nostr.Timestamp(100 * n)}, uint64(10 * (n + 1))}
	}
	told := func(asked, at uint64, id string, known bool) reply {
		return reply{asker: "one", asked: asked, at: at, ids: []string{id}, known: []bool{known}}
	}
	for name, c := range map[string]struct {
		reply reply
		wrong int
	}{
		"known":                               {told(10, 10, "a", true), 0},
		"known before its commit was told":    {told(10, 10, "b", true), 0},
		"unknown, and accepted later":         {told(10, 15, "b", false), 0},
		"unknown, and never accepted":         {told(10, 15, "x", false), 0},
		"unknown where the question ends":     {told(20, 20, "b", false), 1},
		"unknown where it was read to":        {told(10, 25, "b", false), 1},
		"answered too early":                  {told(20, 10, "a", true), 1},
		"answered too early, and not right":   {told(20, 10, "b", false), 2},
		"known, and never came":               {told(10, 10, "x", true), 1},
		"unknown, at the very end of the log": {told(40, 40, "d", false), 1},
	} {
		if wrong := stale([]reply{c.reply}, log); len(wrong) != c.wrong {
			t.Errorf("%s: found %q, want %d", name, wrong, c.wrong)
		}
	}
	since := nostr.Timestamp(100)
	all := nostr.Filter{Kinds: []int{1621}}
	for name, c := range map[string]struct {
		visit visit
		wrong int
	}{
		"all":                        {visit{filter: all, ids: []string{"c", "b", "a", "d"}, stored: true}, 0},
		"the connection ended early": {visit{filter: all, ids: []string{"c"}}, 0},
		"and later":                  {visit{filter: all, ids: []string{"b", "a", "c"}, stored: true}, 0},
		"nothing":                    {visit{filter: all, stored: true}, 0},
		"since":                      {visit{filter: nostr.Filter{Since: &since}, ids: []string{"c", "b"}, stored: true}, 0},
		"twice":                      {visit{filter: all, ids: []string{"b", "a", "b"}, stored: true}, 1},
		"missed":                     {visit{filter: all, ids: []string{"b", "a", "d"}, stored: true}, 1},
		"missed of what is stored":   {visit{filter: all, ids: []string{"c", "a"}, stored: true}, 1},
		"not asked for":              {visit{filter: nostr.Filter{Since: &since}, ids: []string{"b", "a"}, stored: true}, 1},
		"made up":                    {visit{filter: all, ids: []string{"a", "x"}, stored: true}, 1},
	} {
		if wrong := unfaithful(c.visit, log); len(wrong) != c.wrong {
			t.Errorf("%s: found %q, want %d", name, wrong, c.wrong)
		}
	}
	other := told(10, 10, "b", false)
	other.asker = "another"
	most, again, alone := verified([]reply{told(10, 10, "a", true), told(10, 10, "b", false), other, told(10, 10, "b", false), told(10, 10, "c", false)})
	if most != 4 || again != 2 || alone != 1 {
		t.Errorf("verified %d, %d again, %d of them alone; want 4, 2, 1", most, again, alone)
	}
}
