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
// all of the time, without a second in two of them.
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
				if *done[i].Since != *done[i-1].Until+1 {
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

func TestChunks(t *testing.T) {
	t.Parallel()
	var filters []nostr.Filter
	for n := range 25 {
		for _, tag := range []string{"e", "E", "q"} {
			f := nostr.Filter{Tags: nostr.TagMap{}}
			for v := range 100 {
				f.Tags[tag] = append(f.Tags[tag], fmt.Sprintf("%064d", n*100+v))
			}
			filters = append(filters, f)
		}
	}
	long := nostr.Filter{Tags: nostr.TagMap{"a": {strings.Repeat("x", mostBytes)}}}
	filters = append(filters, long, long, nostr.Filter{Kinds: []int{30618}, Tags: nostr.TagMap{"d": {"x"}}}, nostr.Filter{Kinds: []int{1}})
	stands := map[int]bool{}
	sessions := map[string]int{}
	for _, c := range Chunks(filters) {
		var want []string
		tag := ""
		for _, n := range c.Of {
			if stands[n] {
				t.Errorf("filter %d stands in two", n)
			}
			stands[n] = true
			tag, _ = byTag(filters[n])
			want = append(want, filters[n].Tags[tag]...)
		}
		sessions[tag]++
		if tag == "" {
			if !filtersEqual(c.Filter, filters[c.Of[0]]) || len(c.Of) != 1 {
				t.Errorf("%v is reconciled as %v", filters[c.Of[0]], c.Filter)
			}
			continue
		}
		if got := c.Filter.Tags[tag]; !slices.Equal(got, want) || len(c.Filter.Tags) != 1 || len(got) > mostValues || size(got) > mostBytes {
			t.Errorf("%d values of %q, want those %d", len(got), tag, len(want))
		}
	}
	if len(stands) != len(filters) {
		t.Errorf("%d filters are reconciled, want %d", len(stands), len(filters))
	}
	if sessions["e"] != 3 || sessions["E"] != 3 || sessions["q"] != 3 || sessions["a"] != 2 || sessions[""] != 2 {
		t.Errorf("sessions: %v", sessions)
	}
	if got := filters[0].Tags["e"]; len(got) != 100 {
		t.Errorf("a filter was changed: it has %d values", len(got))
	}
}

func filtersEqual(a, b nostr.Filter) bool { return a.String() == b.String() }
