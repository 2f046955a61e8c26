package repos_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/repos"
)

// names makes the names of made-up relays.
func names(of string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("wss://%s-%04d.example", of, i))
	}
	return list
}

func author(n int) string { return fmt.Sprintf("%064x", n+1) }

// heldBy is an entry of purgatory that a client submitted after so many minutes.
func heldBy(client string, minute int, ev *nostr.Event) *proto.Held {
	h := waiting(ev)
	h.Client, h.HeldAt = client, time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)
	return h
}

// TestOneAnnouncementAsksForFewRelays: the first ones of those that it lists, fewer as long as it
// is held.
func TestOneAnnouncementAsksForFewRelays(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	b.Hold("k", waiting(announce(alice, "x", 1, names("r", 90)...)))
	if got := b.Targets(); len(got) != 20 || !got["r-0000.example"].Exists() {
		t.Errorf("%d relays of a held announcement", len(got))
	}
	b.Accept(announce(alice, "x", 1, names("r", 90)...))
	if got := b.Targets(); len(got) != 50 {
		t.Errorf("%d relays of a served announcement", len(got))
	}
}

// TestMadeUpRelaysAreBounded: a thousand held announcements of one client that list twenty made-up
// relays each take no place of relays that served repositories list, nor all of those that another
// client's announcements list.
func TestMadeUpRelaysAreBounded(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, repos.Limits{Served: 100, Held: 50})
	for n := range 1000 {
		b.Hold(fmt.Sprint("flood", n), heldBy("192.0.2.1", 0, announce(author(n), fmt.Sprint("x", n), 1, names(fmt.Sprint("made-up-", n), 20)...)))
	}
	if got := b.Targets(); len(got) != 50 || b.Refused() != 20_000-50 {
		t.Fatalf("%d targets, %d refused", len(got), b.Refused())
	}
	b.Hold("user", heldBy("192.0.2.2", 5, announce(alice, "mine", 1, names("mine", 5)...)))
	b.Accept(announce(bob, "served", 1, names("served", 50)...))
	b.Hold("known", heldBy("192.0.2.3", 9, announce(carol, "known", 1, names("served", 10)...)))
	got := b.Targets()
	if len(got) != 50+50 {
		t.Errorf("%d targets, want 50 of the served repository and 50 of held ones", len(got))
	}
	for _, url := range slices.Concat(names("mine", 5), names("served", 50)) {
		if !got[strings.TrimPrefix(url, "wss://")].Exists() {
			t.Errorf("%s is no target", url)
		}
	}
	if n := len(got["served-0000.example"].Repos); n != 2 {
		t.Errorf("%d repositories are wanted of a relay that two list", n)
	}
	for n := range 1000 {
		b.Hold(fmt.Sprint("flood", n), nil)
	}
	if got := b.Targets(); len(got) != 55 || b.Refused() != 0 {
		t.Errorf("when the flood is over: %d targets, %d refused", len(got), b.Refused())
	}
}

// TestARelayIsAskedForFewHeldRepositories: a relay that many use is listed by strangers too; they
// keep nobody's repository from being asked for.
func TestARelayIsAskedForFewHeldRepositories(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	for n := range 1000 {
		b.Hold(fmt.Sprint("flood", n), heldBy("192.0.2.1", 0, announce(author(n), fmt.Sprint("x", n), 1, "wss://popular.example")))
	}
	b.Hold("user", heldBy("192.0.2.2", 5, announce(alice, "mine", 1, "wss://popular.example")))
	b.Accept(announce(bob, "served", 1, "wss://popular.example"))
	got := b.Targets()["popular.example"].Repos
	if len(got) != 200+1 || got[ref(alice, "mine")].Level != proto.LevelStateOnly || got[ref(bob, "served")].Level != proto.LevelFull {
		t.Errorf("%d repositories", len(got))
	}
}

// TestOwnersTakeTurns: one owner's many relays leave room for those of others.
func TestOwnersTakeTurns(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, repos.Limits{Served: 60, Held: 0})
	for n := range 10 {
		b.Accept(announce(author(0), fmt.Sprint("x", n), 1, names(fmt.Sprint("many", n), 50)...))
	}
	b.Accept(announce(alice, "x", 1, names("few", 3)...))
	b.Hold("k", waiting(announce(bob, "x", 1, "wss://held.example")))
	got := b.Targets()
	if len(got) != 60 || !got["few-0002.example"].Exists() || got["held.example"].Exists() {
		t.Errorf("%d targets", len(got))
	}
}

// TestAuthorsAreBounded: however many keys held announcements name in turn, fifty are asked for,
// the nearest.
func TestAuthorsAreBounded(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	for n := range 20 {
		ev := announce(author(n), "x", 1, "wss://r.example")
		tag := nostr.Tag{"maintainers", author(n + 1)}
		for m := range 400 {
			tag = append(tag, author(1000+1000*n+m))
		}
		b.Hold(fmt.Sprint(n), waiting(with(ev, tag...)))
	}
	for ref, r := range b.Targets()["r.example"].Repos {
		if len(r.Authors) != 50 || !slices.Contains(r.Authors, strings.Split(ref, ":")[1]) {
			t.Errorf("%s: %d authors", ref, len(r.Authors))
		}
	}
}

// TestARootEventNamesFewRepositories: those that nobody announced cost nothing.
func TestARootEventNamesFewRepositories(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	var refs []string
	for n := range 10_000 {
		refs = append(refs, ref(author(n), "x"))
		if n < 200 {
			b.Accept(announce(author(n), "x", 1, "wss://r.example"))
		}
	}
	b.Accept(root(nip34.KindIssue, 1, refs[5000:]...))
	if _, _, roots := b.Counts(); roots != 0 {
		t.Errorf("%d root events of repositories that are not there", roots)
	}
	b.Accept(root(nip34.KindIssue, 2, refs...))
	if _, _, roots := b.Counts(); roots != 100 {
		t.Errorf("%d repositories of one root event", roots)
	}
}

// TestDeletionsNameOnlyTheirAuthorsOwn events, and only those that are here.
func TestDeletionsNameOnlyTheirAuthorsOwn(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	a, issue := announce(alice, "x", 1, "wss://r.example"), root(nip34.KindIssue, 1, ref(alice, "x"), ref(bob, "x"))
	for _, ev := range []*nostr.Event{a, announce(bob, "x", 1, "wss://r.example"), issue} {
		b.Accept(ev)
	}
	request := func(by string) repos.Named {
		return b.NamedBy(&nostr.Event{PubKey: by, Kind: nip34.KindDeletion, Tags: nostr.Tags{
			{"a", ref(alice, "x")}, {"e", a.ID}, {"e", issue.ID}, {"e", strings.Repeat("0", 64)}, {"a", ref(alice, "y")}, {"e"}, {"e", "x"}, {"a", ""},
		}})
	}
	if n := request(bob); !n.Empty() {
		t.Errorf("of another: %+v", n)
	}
	if n := request(alice); len(n.Repos) != 2 || len(n.Roots) != 0 {
		t.Errorf("of the owner: %+v", n)
	}
	n := request(carol)
	if len(n.Repos) != 0 || len(n.Roots) != 1 || !b.ForgetRoot(n.Roots[0]) {
		t.Errorf("of who wrote the issue: %+v", n)
	}
	if got := b.Targets()["r.example"]; len(got.Repos) != 2 || len(got.Repos[ref(alice, "x")].Roots)+len(got.Repos[ref(bob, "x")].Roots) != 0 {
		t.Errorf("in the end: %v", got)
	}
	if n := request(carol); !n.Empty() || b.ForgetRoot(target.ID{}) {
		t.Errorf("it is named once more: %+v", n)
	}
}

// TestOnlyWhatIsConcernedIsMadeAnew: of ten thousand repositories on a thousand relays, a deletion
// makes the targets of two relays anew.
func TestOnlyWhatIsConcernedIsMadeAnew(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	for n := range 10_000 {
		b.Accept(announce(author(n), fmt.Sprint("x", n), 1, fmt.Sprintf("r%d.example", n%1000), fmt.Sprintf("r%d.example", (n+1)%1000)))
	}
	before := b.Targets()
	b.Forget(nip34.RepoRef{PubKey: author(7), Identifier: "x7"})
	var anew []string
	for key, t := range b.Targets() {
		if reflect.ValueOf(t.Repos).Pointer() != reflect.ValueOf(before[key].Repos).Pointer() {
			anew = append(anew, key)
		}
	}
	if slices.Sort(anew); !slices.Equal(anew, []string{"r7.example", "r8.example"}) {
		t.Errorf("made anew: %v", anew)
	}
}

// TestABookInStepIsOneMadeAtOnce: whatever comes and goes in whatever order, the targets are those
// of a book that was told the outcome only.
func TestABookInStepIsOneMadeAtOnce(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	bounds := repos.Limits{Served: 6, Held: 2}
	for range 20 {
		b := repos.NewBook(hosting.Of(domain), nil, bounds)
		log, held := map[string]*nostr.Event{}, map[string]*proto.Held{}
		for step := range 300 {
			who, d := author(rnd.IntN(4)), fmt.Sprint("x", rnd.IntN(3))
			address := ref(who, d)
			var ev *nostr.Event
			relays := []string{fmt.Sprint("r", rnd.IntN(5), ".example"), fmt.Sprintf("ws://s%d.example:8080", rnd.IntN(5))}
			if rnd.IntN(3) > 0 {
				ev = announce(who, d, nostr.Timestamp(step+1), relays...)
			} else {
				ev = elsewhere(who, d, nostr.Timestamp(step+1), relays...)
			}
			with(ev, "maintainers", author(rnd.IntN(4)))
			switch rnd.IntN(6) {
			case 0:
				log[address] = ev
				b.Accept(ev)
			case 1:
				held[address] = heldBy(fmt.Sprint(rnd.IntN(3)), step, ev)
				b.Hold(address, held[address])
			case 2:
				delete(held, address)
				b.Hold(address, nil)
			case 3:
				delete(log, address)
				b.Forget(nip34.RepoRef{PubKey: who, Identifier: d})
			case 4:
				issue := root(nip34.KindIssue, step, address, ref(author(0), d))
				log[issue.ID] = issue
				b.Accept(issue)
			case 5:
				for id := range log {
					if parsed, ok := target.ParseID(id); ok {
						delete(log, id)
						b.ForgetRoot(parsed)
						break
					}
				}
			}
			for range b.TakeUnread() {
				for _, ev := range log {
					b.Accept(ev)
				}
			}
			if rnd.IntN(3) > 0 {
				continue // several changes at once
			}
			fresh := repos.NewBook(hosting.Of(domain), nil, bounds)
			accept(fresh, slices.SortedFunc(maps.Values(log), func(a, b *nostr.Event) int { return b.Kind - a.Kind })...)
			for key, h := range held {
				fresh.Hold(key, h)
			}
			if got, want := told(b.Targets()), told(fresh.Targets()); !slices.Equal(got, want) || b.Refused() != fresh.Refused() {
				t.Fatalf("step %d: got\n%s\nwant\n%s", step, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}
