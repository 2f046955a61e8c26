package repos

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/services/discovery/wanted"
)

// spread is an id of a number; the ids of following numbers are far from each other.
func spread(n int) (id target.ID) {
	binary.BigEndian.PutUint64(id[:], uint64(n)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

// TestARootSetIsWhatAMapSays: ids come, go and come again, more of them than are kept beside the
// list. Lists that were given do not change.
func TestARootSetIsWhatAMapSays(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	var set rootSet
	model := map[wanted.Short]bool{}
	var given, copied []wanted.Short
	for step := range 40_000 {
		id := wanted.ShortOf(spread(rnd.IntN(9_000)))
		has := set.has(id)
		if has != model[id] {
			t.Fatalf("%d: it has %x: %v", step, id, has)
		}
		more := step%20_000 < 12_000 // more come for a while, then more go
		switch {
		case !has && (more || rnd.IntN(4) == 0):
			set.add(id)
			model[id] = true
		case has && (!more || rnd.IntN(4) == 0):
			set.lose(id)
			delete(model, id)
		}
		if n := max(len(set.fresh), len(set.gone)); n > mostBeside {
			t.Fatalf("%d: %d ids are beside the list", step, n)
		}
		if rnd.IntN(2000) == 0 {
			if !slices.Equal(given, copied) {
				t.Fatalf("%d: a list that was given has changed", step)
			}
			given = set.list()
			copied = slices.Clone(given)
			if want := slices.SortedFunc(maps.Keys(model), wanted.Short.Compare); !slices.Equal(given, want) {
				t.Fatalf("%d: %d ids, want %d", step, len(given), len(want))
			}
		}
	}
}

// TestIDsThatComeAreTakenInTogether: of a repository of several maintainers a root event names
// the repository of each, and each is looked through for it. The list, which may be long, is not
// made anew for every few of them.
func TestIDsThatComeAreTakenInTogether(t *testing.T) {
	t.Parallel()
	const coming = 10_000
	b := NewBook(hosting.Of("git.example.com"), nil, Limits{Served: 20, Held: 5})
	var repos []*repository
	var tags nostr.Tags
	for n := range 2 {
		ref := nip34.RepoRef{PubKey: fmt.Sprintf("%064x", n+1), Identifier: "x"}
		repo := &repository{announcement: &announcement{ref: ref}}
		b.number(repo)
		b.group(ref.Identifier).accepted[ref.PubKey] = repo
		repos, tags = append(repos, repo), append(tags, nostr.Tag{"a", ref.String()})
	}
	made, lengths := 0, make([]int, len(repos))
	for n := range coming {
		ev := &nostr.Event{ID: spread(n).String(), PubKey: repos[0].ref.PubKey, Kind: nip34.KindIssue, Tags: tags}
		if !b.Accept(ev) || b.Accept(ev) {
			t.Fatalf("%d is not taken in once", n)
		}
		for i, repo := range repos {
			if len(repo.sorted) != lengths[i] {
				made, lengths[i] = made+1, len(repo.sorted)
			}
		}
	}
	if most := len(repos) * coming / 1000; made > most {
		t.Errorf("the lists are made anew %d times for %d ids that come, want at most %d", made, coming, most)
	}
	for _, repo := range repos {
		if got := repo.list(); len(got) != coming {
			t.Errorf("%s has %d ids, want %d", repo.ref, len(got), coming)
		}
	}
}
