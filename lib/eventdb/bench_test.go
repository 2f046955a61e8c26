package eventdb

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

const (
	benchEvents  = 200_000
	benchAuthors = 20_000
	benchRepos   = 1_000
	// benchTopic is a tag's value that every hundredth event carries.
	benchTopic = "hundredth"
)

// benchID is a well mixed id that follows from a number.
func benchID(what, n uint64) string {
	rnd := rand.New(rand.NewPCG(what, n))
	var b [32]byte
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return hex.EncodeToString(b[:])
}

const (
	ofEvent = iota
	ofAuthor
	ofSignature
)

// benchEvent makes an event as a git relay has them: of few prolific and many rare authors, about
// few busy and many quiet repositories, 500 to 900 bytes of JSON.
func benchEvent(seq uint64) *nostr.Event {
	rnd := rand.New(rand.NewPCG(seq, 3))
	skewed := func(n int) uint64 { f := rnd.Float64(); return uint64(f * f * float64(n)) }
	repo := skewed(benchRepos)
	owner := benchID(ofAuthor, repo)
	ev := &nostr.Event{
		ID: benchID(ofEvent, seq), PubKey: benchID(ofAuthor, skewed(benchAuthors)), CreatedAt: nostr.Timestamp(1_700_000_000 + seq/3),
		Sig: benchID(ofSignature, seq) + benchID(ofSignature, ^seq), Content: strings.Repeat("as said before, ", 4+rnd.IntN(20)),
		Tags: nostr.Tags{{"a", fmt.Sprintf("30617:%s:project-%d", owner, repo)}, {"p", owner}},
	}
	switch n := rnd.IntN(100); {
	case n < 2:
		ev.Kind, ev.Tags = 30618, nostr.Tags{{"d", fmt.Sprintf("project-%d", repo)}, {"refs/heads/main", strings.Repeat("c", 40)}, {"HEAD", "ref: refs/heads/main"}}
	case n < 20:
		ev.Kind = 1617
		ev.Tags = append(ev.Tags, nostr.Tag{"t", "root"}, nostr.Tag{"r", strings.Repeat("e", 40)})
	case n < 35:
		ev.Kind = 1621
		ev.Tags = append(ev.Tags, nostr.Tag{"subject", "it does not work"}, nostr.Tag{"t", fmt.Sprintf("topic-%d", rnd.IntN(50))})
	case n < 75:
		ev.Kind = 1111
		root := benchID(ofEvent, 1+seq/2)
		ev.Tags = append(ev.Tags, nostr.Tag{"E", root}, nostr.Tag{"K", "1621"}, nostr.Tag{"e", root}, nostr.Tag{"k", "1621"})
	default:
		ev.Kind = 7
		ev.Tags = append(ev.Tags, nostr.Tag{"e", benchID(ofEvent, 1+seq/2)}, nostr.Tag{"k", "1111"})
	}
	if seq%100 == 0 {
		ev.Tags = append(ev.Tags, nostr.Tag{"t", benchTopic})
	}
	return ev
}

// The filters that clients send; each asks for 500 events.
var benchFilters = []struct {
	name   string
	filter nostr.Filter
}{
	{"Kind", nostr.Filter{Kinds: []int{1621}, Limit: 500}},
	{"Tag", nostr.Filter{Tags: nostr.TagMap{"a": {"30617:" + benchID(ofAuthor, 3) + ":project-3"}}, Limit: 500}},
	{"TagAndKind", nostr.Filter{Kinds: []int{1621}, Tags: nostr.TagMap{"a": {"30617:" + benchID(ofAuthor, 3) + ":project-3"}}, Limit: 500}},
	{"TagAndAuthor", nostr.Filter{Authors: []string{benchID(ofAuthor, 0)}, Tags: nostr.TagMap{"k": {"1621", "1111"}}, Limit: 500}},
	{"Authors2000", nostr.Filter{Authors: benchIDs(ofAuthor, 2000), Limit: 500}},
	{"IDs2000", nostr.Filter{IDs: benchIDs(ofEvent, 2000), Limit: 500}},
	{"Nothing", nostr.Filter{Tags: nostr.TagMap{"x": {"no one said this"}}, Limit: 500}},
	{"All", nostr.Filter{Limit: 500}},
}

func benchIDs(what, n uint64) []string {
	var list []string
	for i := range n {
		list = append(list, benchID(what, i))
	}
	return list
}

// BenchmarkQueryBy asks as the front door does, for JSON as logged: while nothing is hidden, and with
// a thousand hidden events.
func BenchmarkQueryBy(b *testing.B) {
	db := open(b, b.TempDir())
	defer closeDB(b, db)
	for db.Seq() < benchEvents {
		var events []*nostr.Event
		for n := range uint64(500) {
			events = append(events, benchEvent(db.Seq()+1+n))
		}
		apply(b, db, events...)
	}
	if err := db.pebble.Flush(); err != nil {
		b.Fatal(err)
	}
	for _, bans := range []filters{nil, {{IDs: benchIDs(ofEvent, 1000)}}} {
		if err := db.Hide(bans); err != nil {
			b.Fatal(err)
		}
		v := db.View()
		for _, q := range benchFilters {
			b.Run(fmt.Sprintf("%s/%d bans", q.name, len(bans)), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					for _, err := range v.QueryRaw(b.Context(), q.filter) {
						if err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
