package authority

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// known is announcements by author. It counts how many were looked at.
type known struct {
	by    map[string]*nostr.Announcement
	ledBy map[string][]*nostr.Announcement
	looks int
}

func (k *known) By(author string) *nostr.Announcement {
	k.looks++
	return k.by[author]
}

func (k *known) LedBy(lead string) iter.Seq[*nostr.Announcement] {
	return func(yield func(*nostr.Announcement) bool) {
		for _, a := range k.ledBy[lead] {
			if k.looks++; !yield(a) {
				return
			}
		}
	}
}

func (k *known) add(author string, roles nostr.Roles) {
	a := &nostr.Announcement{Ref: nostr.RepoRef{PubKey: author, Identifier: "x"}, Roles: roles}
	k.by[author] = a
	if lead, is := LeadOf(a); is {
		k.ledBy[lead] = append(k.ledBy[lead], a)
	}
}

func nothing() *known {
	return &known{by: map[string]*nostr.Announcement{}, ledBy: map[string][]*nostr.Announcement{}}
}

// read reads announcements: "owner lists bob, carol; bob leads dave, lists owner; carol left". A
// lead is listed too.
func read(text string) *known {
	all := nothing()
	for line := range strings.SplitSeq(text, ";") {
		author, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if author == "" {
			continue
		}
		roles, verb := nostr.Roles{Active: true}, ""
		for _, word := range strings.Fields(strings.ReplaceAll(rest, ",", " ")) {
			switch {
			case word == "left":
				roles.Active = false
			case word == "lists" || word == "leads":
				verb = word
			default:
				if verb == "leads" {
					roles.Leads = append(roles.Leads, word)
				}
				if word != author {
					roles.Listed = append(roles.Listed, word)
				}
			}
		}
		all.add(author, roles)
	}
	return all
}

func TestGroups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, announcements, owner, confirmed, invited, noAuthority string }{
		{"alone", "a", "a", "a", "", ""},
		{"not announced", "b", "a", "", "", "no announcement"},
		{"invited, without an announcement", "a lists b", "a", "a", "b", ""},
		{"accepted", "a lists b; b lists a", "a", "a b", "", ""},
		{"the own fork of an invited key", "a lists b; b", "a", "a", "b", ""},
		{"not listed", "a; b lists a", "a", "a", "", ""},
		{"accepted by naming another confirmed one", "a lists b; b lists a c; c lists b", "a", "a b c", "", ""},
		{"accepted towards one who is confirmed later", "a lists c b; b lists a; c lists b", "a", "a b c", "", ""},
		{"accepted towards one who is invited only", "a lists b c; c lists b", "a", "a", "b c", ""},
		{"two who name each other only", "a lists b c; b lists c; c lists b", "a", "a", "b c", ""},
		{"left", "a lists b c; b left lists a; c lists a", "a", "a c", "", ""},
		{"what one who has left lists", "a lists b; b left lists a c; c lists b", "a", "a", "", ""},
		{"the owner has left", "a left lists b; b lists a", "a", "", "", "has left"},
		{"the lead", "a leads b; b leads b lists a", "a", "b a", "", ""},
		{"a path of three, the first not accepted", "a leads b; b leads c; c leads c lists b", "a", "c b", "", ""},
		{"a path of three, each accepted", "a leads b; b leads c lists a; c leads c lists b", "a", "c b a", "", ""},
		{"the lead has not named the owner", "a leads b; b leads b", "a", "b", "", ""},
		{"the owner leads", "a leads a lists b; b lists a", "a", "a b", "", ""},
		{"two leads", "a leads a b; b lists a", "a", "", "", "two leads"},
		{"two leads of the lead", "a leads b; b leads b c", "a", "", "", "two leads"},
		{"the lead is missing", "a leads b", "a", "", "", "is missing"},
		{"the lead names no lead", "a leads b; b lists a", "a", "", "", "names no lead"},
		{"a circle", "a leads b; b leads a", "a", "", "", "circle"},
		{"a circle behind", "a leads b; b leads c; c leads b", "a", "", "", "circle"},
		{"the lead has left", "a leads b; b left", "a", "", "", "names no lead"},
		{"an owner who has left and leads another", "a left leads b; b leads b", "a", "b", "", ""},
	} {
		g := Of(read(c.announcements), c.owner)
		noAuthority := g.NoAuthority.String()
		if strings.Join(g.Confirmed, " ") != c.confirmed || strings.Join(g.Invited, " ") != c.invited ||
			!strings.Contains(noAuthority, c.noAuthority) || (noAuthority == "") != (c.noAuthority == "") {
			t.Errorf("%s: confirmed %q, invited %q, noAuthority %q", c.name, g.Confirmed, g.Invited, noAuthority)
		}
		if (noAuthority == "") != (g.NoAuthority.Advice() == "") || (noAuthority == "") != (g.Root != "") {
			t.Errorf("%s: root %q, noAuthority %q, advice %q", c.name, g.Root, noAuthority, g.NoAuthority.Advice())
		}
	}
}

func TestCoordinates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, announcements, key, owners string }{
		{"alone", "a", "a", "a"},
		{"no announcement", "a lists b", "b", ""},
		{"the own fork of an invited key", "a lists b; b", "b", "b"},
		{"accepted", "a lists b; b lists a", "b", "b a"},
		{"whom strangers list", "a lists x; b lists x; c lists x; x", "x", "x"},
		{"reciprocal through another", "a lists b; b lists a c; c lists b", "c", "c b a"},
		{"accepted towards another than who lists", "a lists b c; b lists a; c lists b", "c", "c b a"},
		{"left", "a lists b; b left lists a", "b", ""},
		{"owners who point to the lead", "a leads b; b leads b; c leads a", "b", "b a c"},
		{"an owner who points to the lead has no say", "a leads b; b leads b", "a", ""},
		{"who points to an owner that names no lead", "a; c leads a", "a", "a"},
		{"two leads count as none, and the role elsewhere stays", "a leads a b; b lists a", "a", "b"},
	} {
		var owners []string
		for at := range Coordinates(read(c.announcements), c.key) {
			owners = append(owners, at.Owner)
		}
		if strings.Join(owners, " ") != c.owners {
			t.Errorf("%s: %q", c.name, owners)
		}
		if Speaks(read(c.announcements), c.key, nil) != (c.owners != "") {
			t.Errorf("%s: Speaks", c.name)
		}
	}
}

func TestSharing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, announcements, owner, owners string }{
		{"alone", "a", "a", "a"},
		{"maintainers without a lead have roots of their own", "a lists b; b lists a", "a", "a"},
		{"one lead", "a leads b; b leads b lists a c; c leads b", "a", "b a c"},
		{"who only points shares nothing", "a leads b; b leads b", "a", ""},
		{"and gets nothing shared", "a leads b; b leads b", "b", "b"},
	} {
		if owners := Sharing(read(c.announcements), c.owner); strings.Join(owners, " ") != c.owners {
			t.Errorf("%s: %q", c.name, owners)
		}
	}
}

func TestWhy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ announcements, key, reason, advice string }{
		{"a", "a", "", ""},
		{"a", "b", "b is not listed by a confirmed maintainer", "a must publish an announcement of this identifier that lists b"},
		{"a lists b", "b", "b is invited but has not accepted yet", "b must publish an announcement of this identifier that lists a"},
		{"a lists b; b", "b", "b is invited but has not accepted yet", "b must publish an announcement of this identifier that lists a"},
		{"a lists b; b left lists a", "b", "b has left", "b must publish an announcement of this identifier in which the own role is active"},
		{"a leads b", "a", "no one has authority: the announcement of the lead b is missing", "b must publish an announcement of this identifier"},
		{"a leads a b", "a", "no one has authority: the announcement of a names two leads", "a must publish an announcement of this identifier that names one lead"},
	} {
		reason, advice := Why(read(c.announcements), "a", c.key)
		if reason != c.reason || advice != c.advice {
			t.Errorf("%s: %q, %q", c.announcements, reason, advice)
		}
	}
}

// TestWith: an announcement counts before it is accepted, in place of that before it.
func TestWith(t *testing.T) {
	t.Parallel()
	all := read("a lists b; c leads a")
	now := With(all, read("b lists a").by["b"])
	if !Of(now, "a").Has("b") || Of(all, "a").Has("b") {
		t.Error("an acceptance does not count")
	}
	now = With(all, read("a leads a").by["a"])
	if got := fmt.Sprint(slices.Collect(Coordinates(now, "a"))); got != "[{a a} {c a}]" {
		t.Error(got)
	}
	now = With(all, read("c leads c").by["c"])
	if got := slices.Collect(now.LedBy("a")); len(got) != 0 {
		t.Error("a lead that was given up still counts")
	}
}

func random(r *rand.Rand, keys int) *known {
	all := nothing()
	name := func() string { return fmt.Sprint(r.IntN(keys)) }
	for author := range keys {
		if r.IntN(5) == 0 {
			continue
		}
		roles := nostr.Roles{Active: r.IntN(6) > 0}
		leads := map[string]bool{}
		if r.IntN(4) == 0 {
			leads[fmt.Sprint(author)] = true
		}
		if r.IntN(6) == 0 {
			leads[name()] = true
		}
		roles.Leads = slices.Sorted(maps.Keys(leads))
		listed := leads
		for range r.IntN(5) {
			listed[name()] = true
		}
		delete(listed, fmt.Sprint(author))
		roles.Listed = slices.Sorted(maps.Keys(listed))
		roles.Active = roles.Active || slices.Contains(roles.Leads, fmt.Sprint(author))
		all.add(fmt.Sprint(author), roles)
	}
	return all
}

// plain is the rule as it is written: repeat until nothing is added.
func plain(all *known, owner string) map[string]bool {
	root := owner
	for path := []string{}; ; {
		a := all.by[root]
		if a == nil || slices.Contains(path, root) || len(a.Leads) > 1 {
			return nil
		}
		if len(a.Leads) == 0 && (len(path) > 0 || !a.Active) {
			return nil
		}
		if len(a.Leads) == 0 || a.Leads[0] == root {
			break
		}
		path, root = append(path, root), a.Leads[0]
	}
	confirmed := map[string]bool{root: true}
	for added := true; added; {
		added = false
		for key, a := range all.by {
			if confirmed[key] || !a.Active {
				continue
			}
			listed, lists := false, false
			for other := range confirmed {
				listed = listed || all.by[other].Lists(key)
				lists = lists || a.Lists(other)
			}
			if listed && lists {
				confirmed[key], added = true, true
			}
		}
	}
	return confirmed
}

// TestAsTheFixpoint: the walks find what the rule says, on random graphs.
func TestAsTheFixpoint(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 36))
		keys := 2 + r.IntN(12)
		all := random(r, keys)
		speaks := map[string]map[string]bool{}
		for author := range keys {
			owner := fmt.Sprint(author)
			want, g := plain(all, owner), Of(all, owner)
			if got := slices.Sorted(slices.Values(g.Confirmed)); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
				t.Fatalf("seed %d: confirmed for %s are %q, want %v", seed, owner, got, want)
			}
			for key := range want {
				if speaks[key] == nil {
					speaks[key] = map[string]bool{}
				}
				speaks[key][owner] = true
			}
			for _, key := range g.Invited {
				if want[key] || all.by[key] != nil && !all.by[key].Active {
					t.Fatalf("seed %d: %s is invited for %s", seed, key, owner)
				}
			}
			for key := range keys {
				if reason, _ := Why(all, owner, fmt.Sprint(key)); (reason == "") != want[fmt.Sprint(key)] {
					t.Fatalf("seed %d: %s for %s: %q", seed, fmt.Sprint(key), owner, reason)
				}
			}
		}
		for author := range keys {
			key, got := fmt.Sprint(author), map[string]bool{}
			for c := range Coordinates(all, key) {
				if got[c.Owner] {
					t.Fatalf("seed %d: %s speaks twice for %s", seed, key, c.Owner)
				}
				got[c.Owner] = true
			}
			if !maps.Equal(got, speaks[key]) {
				t.Fatalf("seed %d: %s speaks for %v, want %v", seed, key, got, speaks[key])
			}
		}
	}
}

// TestWhatWasLookedAtDecides: while none of the announcements that were looked at changes, the
// group stays as it is. MayChange says so before it is worked out anew.
func TestWhatWasLookedAtDecides(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 37))
		keys := 2 + r.IntN(10)
		before, after := random(r, keys), random(r, keys)
		changed := fmt.Sprint(r.IntN(keys))
		for key, a := range before.by { // after differs from before in one announcement only
			if key != changed {
				after.by[key] = a
			}
		}
		for key := range after.by {
			if key != changed && before.by[key] == nil {
				delete(after.by, key)
			}
		}
		for owner := range keys {
			was, is := Of(before, fmt.Sprint(owner)), Of(after, fmt.Sprint(owner))
			same := slices.Equal(slices.Sorted(slices.Values(was.Confirmed)), slices.Sorted(slices.Values(is.Confirmed)))
			var listed []string
			if a := after.by[changed]; a != nil {
				listed = a.Listed
			}
			if !(same && was.Root == is.Root) && !was.MayChange(changed, listed) {
				t.Fatalf("seed %d: %s was not looked at for %d, or may not change it: %v, %v", seed, changed, owner, was, is)
			}
		}
	}
}

// crowd is one repository of three maintainers among so many strangers, who announce the same
// identifier and list its people.
func crowd(strangers int) *known {
	all := read("a leads a lists b c; b lists a; c lists b")
	for i := range strangers {
		roles := nostr.Roles{Active: true, Listed: []string{"a", "b", "c"}}
		if i%2 == 0 {
			roles.Leads = []string{"a"}
		}
		all.add(fmt.Sprint("stranger", i), roles)
	}
	return all
}

// TestStrangersAreNotLookedAt: a question costs what its own chain has, and has an end. Whom a
// stranger's repository concerns only because the stranger lists them cannot change it.
func TestStrangersAreNotLookedAt(t *testing.T) {
	t.Parallel()
	alone, among := crowd(0), crowd(10_000)
	for _, all := range []*known{alone, among} {
		Of(all, "a")
		Speaks(all, "c", nil)
		Why(all, "a", "stranger1")
		Sharing(all, "a")
	}
	// The strangers who name "a" as lead are coordinates of "a" only when these are asked for.
	if among.looks > alone.looks {
		t.Errorf("%d announcements were looked at among strangers, %d without them", among.looks, alone.looks)
	}
	if Of(among, "stranger1").MayChange("c", []string{"b", "a"}) || !Of(among, "a").MayChange("c", nil) ||
		!Of(among, "stranger2").MayChange("c", nil) {
		t.Error("a maintainer's announcement concerns the wrong repositories")
	}
	among.looks = 0
	n := 0
	for range Coordinates(among, "a") {
		n++
	}
	if among.looks > MaxLooks+MaxConfirmed || n < 1000 {
		t.Errorf("%d coordinates with %d looks", n, among.looks)
	}
}

// TestAnyPathOfLeadsHasAnEnd: also one that takes all looks but the last.
func TestAnyPathOfLeadsHasAnEnd(t *testing.T) {
	t.Parallel()
	for _, more := range []int{-2, -1, 0, 1} {
		all, last := nothing(), MaxLooks+more
		for i := range last {
			all.add(fmt.Sprint(i), nostr.Roles{Active: true, Leads: []string{fmt.Sprint(min(i+1, last-1))}})
		}
		if g := Of(all, "0"); (g.Root == "") != (more >= 0) || (g.Root == "") != (g.NoAuthority.String() != "") {
			t.Errorf("a path of %d: root %q, %q", last, g.Root, g.NoAuthority)
		}
	}
}

// TestStrangersHideNoOtherRoot: any number of them may name a lead.
func TestStrangersHideNoOtherRoot(t *testing.T) {
	t.Parallel()
	all := read("k lists a b; a leads a lists k; b leads b lists k")
	for i := range 2 * MaxFollowing {
		all.add(fmt.Sprint("stranger", i), nostr.Roles{Active: true, Leads: []string{"a"}})
	}
	if !Speaks(all, "k", func(c Coordinate) bool { return c.Owner == "b" }) {
		t.Error("k does not speak for b, because strangers name a")
	}
	if authors := Deciding(all, "k", 10); !slices.Contains(authors, "b") {
		t.Errorf("what decides about k is %q", authors)
	}
}

// TestBounds: of a chain and of a fan without end the nearest count.
func TestBounds(t *testing.T) {
	t.Parallel()
	for _, shape := range []string{"chain", "fan", "invited"} {
		all := nothing()
		all.add("0", nostr.Roles{Active: true})
		for i := 1; i <= 3*MaxLooks; i++ {
			name, lister := fmt.Sprint(i), "0"
			if shape == "chain" {
				lister = fmt.Sprint(i - 1)
			}
			all.by[lister].Listed = append(all.by[lister].Listed, name)
			if shape != "invited" {
				all.add(name, nostr.Roles{Active: true, Listed: []string{lister}})
			}
		}
		g := Of(all, "0")
		if want := map[bool]int{true: 1, false: MaxConfirmed}[shape == "invited"]; len(g.Confirmed) != want {
			t.Errorf("%s: %d are confirmed", shape, len(g.Confirmed))
		}
		for i, key := range g.Confirmed {
			if key != fmt.Sprint(i) {
				t.Fatalf("%s: number %d is %s", shape, i, key)
			}
		}
		if all.looks > MaxLooks || len(g.Looked) > MaxLooks {
			t.Errorf("%s: %d announcements were looked at", shape, all.looks)
		}
		all.looks = 0
		if Speaks(all, fmt.Sprint(3*MaxLooks), func(c Coordinate) bool { return c.Owner == "0" }) || all.looks > MaxLooks {
			t.Errorf("%s: the last speaks for the first, after %d looks", shape, all.looks)
		}
	}
}

func BenchmarkSpeaks(b *testing.B) {
	for _, strangers := range []int{0, 10_000} {
		all := crowd(strangers)
		b.Run(fmt.Sprintf("announcements=%d", strangers+3), func(b *testing.B) {
			for b.Loop() {
				if !Speaks(all, "c", nil) {
					b.Fatal("c does not speak")
				}
			}
		})
	}
}
