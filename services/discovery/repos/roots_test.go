package repos

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/services/discovery/wanted"
)

// TestRootsAreWhatAMapSays: root events that name several repositories, many of whose ids begin
// alike, come one by one and in lists, again and again, and go, with repositories that come and go.
// At each look the book has what a map of sets has.
func TestRootsAreWhatAMapSays(t *testing.T) {
	t.Parallel()
	const domain, author = "git.example.com", "a1"
	owner := strings.Repeat(author, 32)
	npub, err := nip19.EncodePublicKey(owner)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(7, 8))
	b := NewBook(hosting.Of(domain), nil, Limits{Served: 20, Held: 5})
	alike(b)
	model := map[string]map[target.ID]bool{}
	repo := func() nip34.RepoRef { return nip34.RepoRef{PubKey: owner, Identifier: fmt.Sprint("r", rnd.IntN(6))} }
	id := func() (id target.ID) { // few beginnings, few of each
		binary.BigEndian.PutUint32(id[:], uint32(rnd.IntN(8)))
		id[15] = byte(rnd.IntN(5))
		return id
	}
	ends := 0
	for n := range 30_000 {
		ref := repo()
		set := model[ref.String()]
		switch what := rnd.IntN(20); {
		case what < 2: // an announcement
			b.Accept(&nostr.Event{ID: fmt.Sprintf("%064x", n), PubKey: owner, Kind: nip34.KindAnnouncement, CreatedAt: nostr.Timestamp(n), Tags: nostr.Tags{
				{"d", ref.Identifier}, {"clone", fmt.Sprintf("https://%s/%s/%s.git", domain, npub, ref.Identifier)}, {"relays", "wss://" + domain, "wss://r.example"},
			}})
			if set == nil {
				model[ref.String()] = map[target.ID]bool{}
			}
		case what < 9: // one root event
			ev, refs := &nostr.Event{PubKey: owner, Kind: nip34.KindIssue}, []nip34.RepoRef{ref, repo(), repo()}
			x := id()
			ev.ID = x.String()
			for _, ref := range refs {
				ev.Tags = append(ev.Tags, nostr.Tag{"a", ref.String()})
				if set := model[ref.String()]; set != nil {
					set[x] = true
				}
			}
			b.Accept(ev)
		case what < 12: // a list of them
			var ids []wanted.Short
			for range rnd.IntN(20) {
				x := id()
				ids = append(ids, wanted.ShortOf(x))
				if set != nil {
					set[x] = true
				}
			}
			b.AddRoots(ref, ids)
		case what < 18:
			x := id()
			known := false
			for _, set := range model {
				known = known || set[x]
				delete(set, x)
			}
			request := b.NamedBy(&nostr.Event{PubKey: owner, Tags: nostr.Tags{{"e", x.String()}}})
			if !slices.Equal(request.Roots, map[bool][]target.ID{true: {x}}[known]) {
				t.Fatalf("%d: a request names %v; %s is known: %v", n, request.Roots, x, known)
			}
			if did := b.ForgetRoot(x); did != known {
				t.Fatalf("%d: %s was known: %v, want %v", n, x, did, known)
			}
		case what < 19:
			if b.Forget(ref) != (set != nil) {
				t.Fatalf("%d: forgotten though not there, or the other way round", n)
			}
			delete(model, ref.String())
		default:
			if rnd.IntN(20) == 0 { // made anew
				ends++
				b.ForgetAccepted()
				alike(b)
				model = map[string]map[target.ID]bool{}
			}
			compare(t, n, b, model)
		}
	}
	if ends == 0 {
		t.Error("never made anew")
	}
	for ref := range model {
		ref, err := nip34.ParseRepoRef(ref)
		if err != nil || !b.Forget(ref) {
			t.Fatal(ref, err)
		}
	}
	if left := entries(b.roots); left+b.roots.count+len(b.numbered)+len(b.unused)+b.rootCount != 0 {
		t.Errorf("left: %d places, %d counted, %d numbers, %d unused ones, %d roots counted", left, b.roots.count, len(b.numbered), len(b.unused), b.rootCount)
	}
}

// alike has the book's table of places take most ids for each other: of all hashes there are four.
func alike(b *Book) {
	b.roots.hash = func(id wanted.Short) uint64 { return uint64(id[3]&1)<<63 | uint64(id[15]&1) }
}

// entries counts the places of a table.
func entries(t *places) (n int) {
	for _, part := range t.parts {
		n += len(part)
	}
	return n
}

func compare(t *testing.T, n int, b *Book, model map[string]map[target.ID]bool) {
	t.Helper()
	got, total := b.Targets()["r.example"].Repos, 0
	if len(got) != len(model) {
		t.Fatalf("%d: %d repositories, want %d", n, len(got), len(model))
	}
	for ref, set := range model {
		total += len(set)
		var want []wanted.Short
		for id := range set {
			want = append(want, wanted.ShortOf(id))
		}
		if want = target.SortIDs(want); !slices.Equal(got[ref].Roots, want) {
			t.Fatalf("%d: %s has %v, want %v", n, ref, got[ref].Roots, want)
		}
	}
	if b.rootCount != total {
		t.Fatalf("%d: %d are counted, want %d", n, b.rootCount, total)
	}
}

// TestABookMadeAnewKeepsItsLists: what has not changed is in memory once, also when it is read
// again.
func TestABookMadeAnewKeepsItsLists(t *testing.T) {
	t.Parallel()
	const domain = "git.example.com"
	owner := strings.Repeat("a1", 32)
	npub, err := nip19.EncodePublicKey(owner)
	if err != nil {
		t.Fatal(err)
	}
	announcement := &nostr.Event{ID: strings.Repeat("1", 64), PubKey: owner, Kind: nip34.KindAnnouncement, Tags: nostr.Tags{
		{"d", "x"}, {"clone", fmt.Sprintf("https://%s/%s/x.git", domain, npub)}, {"relays", "wss://" + domain, "wss://r.example"},
	}}
	b := NewBook(hosting.Of(domain), nil, Limits{Served: 20, Held: 5})
	ref := nip34.RepoRef{PubKey: owner, Identifier: "x"}
	read := func() []wanted.Short {
		b.ForgetAccepted()
		b.Accept(announcement)
		b.AddRoots(ref, []wanted.Short{{3}, {1}, {2}})
		return b.Targets()["r.example"].Repos[ref.String()].Roots
	}
	first, again := read(), read()
	if len(first) != 3 || &first[0] != &again[0] {
		t.Errorf("%v and %v are two lists", first, again)
	}
}

// TestIDsThatGoAreTakenOutTogether: an author may delete any number of root events of a repository
// that has very many, one by one and beside new ones. The list is not made anew for each.
func TestIDsThatGoAreTakenOutTogether(t *testing.T) {
	t.Parallel()
	const all, going = 5000, 1000
	b := NewBook(hosting.Of("git.example.com"), nil, Limits{Served: 20, Held: 5})
	ref := nip34.RepoRef{PubKey: strings.Repeat("a1", 32), Identifier: "x"}
	repo := &repository{announcement: &announcement{ref: ref}}
	b.number(repo)
	b.group(ref.Identifier).accepted[ref.PubKey] = repo
	id := func(n int) (id target.ID) {
		binary.BigEndian.PutUint32(id[:], uint32(n))
		return id
	}
	var ids []wanted.Short
	for n := range all {
		ids = append(ids, wanted.ShortOf(id(n)))
	}
	b.AddRoots(ref, ids)
	made, last := 0, &repo.sorted[0]
	for n := range going {
		if !b.ForgetRoot(id(n)) || b.ForgetRoot(id(n)) {
			t.Fatalf("%d is not known once", n)
		}
		b.Accept(&nostr.Event{ID: id(all + n).String(), PubKey: ref.PubKey, Kind: nip34.KindIssue, Tags: nostr.Tags{{"a", ref.String()}}})
		if at := &repo.sorted[0]; at != last {
			made, last = made+1, at
		}
	}
	if made > going/32 {
		t.Errorf("the list is made anew %d times for %d ids that go", made, going)
	}
	if got := repo.list(); len(got) != all || got[0] != wanted.ShortOf(id(going)) || got[all-1] != wanted.ShortOf(id(all+going-1)) {
		t.Errorf("%d ids are left", len(got))
	}
}

// TestWholeIDsAreHeard: of root events that come and go one by one, if they change anything; of
// others only half of an id is kept.
func TestWholeIDsAreHeard(t *testing.T) {
	t.Parallel()
	b := NewBook(hosting.Of("git.example.com"), nil, Limits{Served: 20, Held: 5})
	ref := nip34.RepoRef{PubKey: strings.Repeat("a1", 32), Identifier: "x"}
	repo := &repository{announcement: &announcement{ref: ref}}
	b.number(repo)
	b.group(ref.Identifier).accepted[ref.PubKey] = repo
	issue := func(n int, ref string) target.ID {
		var id target.ID
		binary.BigEndian.PutUint32(id[:], uint32(n))
		id[31] = 1
		b.Accept(&nostr.Event{ID: id.String(), PubKey: strings.Repeat("b2", 32), Kind: nip34.KindIssue, Tags: nostr.Tags{{"a", ref}}})
		return id
	}
	heard := func(want ...target.ID) {
		t.Helper()
		if got := b.TakeHeard(); !slices.Equal(got, want) {
			t.Errorf("heard %v, want %v", got, want)
		}
	}
	b.AddRoots(ref, []wanted.Short{{1}, {2}})
	heard()
	issue(1, "30617:"+ref.PubKey+":y")
	first := issue(2, ref.String())
	issue(2, ref.String())
	second := issue(3, ref.String())
	heard(first, second)
	heard()
	b.ForgetRoot(first)
	b.ForgetRoot(first)
	b.DropRoot(wanted.Short{1})
	b.ForgetAccepted()
	heard(first)
	b.group(ref.Identifier).accepted[ref.PubKey] = repo
	*repo = repository{announcement: repo.announcement}
	b.number(repo)
	for n := range mostHeard + 10 {
		issue(n, ref.String())
	}
	if n := len(b.TakeHeard()); n != mostHeard {
		t.Errorf("%d are kept, want %d", n, mostHeard)
	}
}

// TestMostRepositoriesAreCountedForEachRootEvent: root events that the table cannot tell apart
// count for as many repositories each as one alone.
func TestMostRepositoriesAreCountedForEachRootEvent(t *testing.T) {
	t.Parallel()
	const all, fewer = maxRefs + 20, maxRefs - 40
	b := NewBook(hosting.Of("git.example.com"), nil, Limits{Served: 20, Held: 5})
	b.roots.hash = func(wanted.Short) uint64 { return 0 }
	var tags nostr.Tags
	for n := range all {
		ref := nip34.RepoRef{PubKey: fmt.Sprintf("%064x", n+1), Identifier: "x"}
		repo := &repository{announcement: &announcement{ref: ref}}
		b.number(repo)
		b.group(ref.Identifier).accepted[ref.PubKey] = repo
		tags = append(tags, nostr.Tag{"a", ref.String()})
	}
	for n, c := range []struct{ names, counts int }{{fewer, fewer}, {all, maxRefs}, {fewer, fewer}, {maxRefs, maxRefs}} {
		before := b.rootCount
		ev := &nostr.Event{ID: spread(n).String(), PubKey: fmt.Sprintf("%064x", 1), Kind: nip34.KindIssue, Tags: tags[:c.names]}
		if !b.Accept(ev) || b.Accept(ev) || b.rootCount-before != c.counts {
			t.Errorf("%d: counts for %d repositories, want %d of %d", n, b.rootCount-before, c.counts, c.names)
		}
	}
}
