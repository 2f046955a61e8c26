package negentropy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
)

func TestRefusals(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]refusal{
		"blocked: too many query results":                    tooMany,
		"blocked: this query is too big":                     tooMany,
		"blocked: too many events match, at most 250000 are": tooMany,
		"blocked: too many sessions; at most 32 on one":      fewer,
		"too many concurrent NEG requests":                   fewer,
		"blocked: too many subscriptions":                    fewer,
		"rate-limited: slow down":                            quiet,
		"closed: unknown subscription handle":                gone,
		"CLOSED":                                             gone,
		"closed: you took too long":                          gone,
		"auth-required: log in":                              unable,
		"PROTOCOL-ERROR":                                     unable,
		"error: negentropy disabled":                         unable,
		"":                                                   unable,
	} {
		if got := refusalOf(reason); got != want {
			t.Errorf("%q: %v, want %v", reason, got, want)
		}
	}
}

// TestPieces halves pieces by chance, and asks whether what is done and what is left are together
// all of the time.
func TestPieces(t *testing.T) {
	t.Parallel()
	const now = 1_800_000_000
	at := func(n nostr.Timestamp) *nostr.Timestamp { return &n }
	for _, whole := range []Span{{}, {Since: at(5)}, {Until: at(10)}, {Since: at(1_700_000_000), Until: at(1_700_000_009)}, {Since: at(7), Until: at(7)}} {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 0))
			p := plan{{Span: whole}}
			var done []Span
			for refused := 0; len(p) > 0; {
				rest := p.rest()
				if rest.Since != whole.Since {
					t.Fatalf("the rest begins at %v", rest.Since)
				}
				if halves, ok := p.split(now); ok && r.IntN(3) > 0 && refused < 100 {
					p, refused = halves, refused+1
					continue
				}
				done, p = append(done, p.next()), p.done()
			}
			slices.Reverse(done) // the oldest first
			if done[0].Since != whole.Since || done[len(done)-1].Until != whole.Until {
				t.Fatalf("%v was cut into %v", whole, done)
			}
			for i := 1; i < len(done); i++ {
				if *done[i].Since != *done[i-1].Until {
					t.Fatalf("%d does not follow %d", *done[i].Since, *done[i-1].Until)
				}
			}
		}
	}
	p, n := plan{{}}, 0
	for ok := true; ok; n++ {
		p, ok = p.split(now)
	}
	if s := p.next(); n != mostSplits+1 || now-*s.Since > 7200 {
		t.Errorf("after %d halves the newest piece begins at %d", n, *s.Since)
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	group := func(names string, values ...string) (filters []nostr.Filter) {
		for _, name := range names {
			filters = append(filters, nostr.Filter{Tags: nostr.TagMap{string(name): values}})
		}
		return filters
	}
	var groups [][]nostr.Filter
	for n := range 25 {
		var ids []string
		for v := range 100 {
			ids = append(ids, fmt.Sprintf("%064d", n*100+v))
		}
		groups = append(groups, group("eEq", ids...))
	}
	long := strings.Repeat("x", mostBytes/2+1)
	groups = append(groups, group("aAq", long), group("aAq", long), group("aAq", "y"))
	one := []nostr.Filter{{Kinds: []int{1}}}
	states := []nostr.Filter{{Kinds: []int{30618}, Tags: nostr.TagMap{"d": {"x"}}}}
	groups = append(groups, one, one, states, states)
	want := []int{10, 10, 5, 1, 2, 1, 1, 1, 1}
	next := 0
	for n, u := range Units(groups, 128<<10) {
		if n >= len(want) || len(u.Groups) != want[n] {
			t.Fatalf("unit %d has %d groups, want %v", n, len(u.Groups), want)
		}
		var values [3][]string
		for _, g := range u.Groups {
			if &g[0] != &groups[next][0] {
				t.Fatalf("group %d is not in its place", next)
			}
			next++
			for i, f := range g {
				_, of := byTag(f)
				values[i] = append(values[i], of...)
			}
		}
		for i, f := range u.Filters() {
			tag, of := byTag(f)
			if have, _ := byTag(u.Groups[0][i]); tag != have || !slices.Equal(of, values[i]) || len(of) > mostValues {
				t.Errorf("unit %d: filter %d is by %q with %d values, want %q with %d", n, i, tag, len(of), have, len(values[i]))
			}
			if tag == "" && f.String() != u.Groups[0][i].String() {
				t.Errorf("unit %d: %v is reconciled as %v", n, u.Groups[0][i], f)
			}
		}
	}
	if next != len(groups) {
		t.Errorf("%d groups are in units, want %d", next, len(groups))
	}
	if got := groups[0][0].Tags["e"]; len(got) != 100 {
		t.Errorf("a filter was changed: it has %d values", len(got))
	}
	if n := len(Units(groups[:25], 64<<10)); n != 4 {
		t.Errorf("%d units for a relay that takes 64 KiB, want 4 with at most 800 ids", n)
	}
	if Units(nil, 0) != nil {
		t.Error("nothing makes units")
	}
}
