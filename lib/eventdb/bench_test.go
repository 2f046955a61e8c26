package eventdb

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// BenchmarkQuery asks as the front door does, for 500 events as JSON as logged.
func BenchmarkQuery(b *testing.B) {
	const events, authors = 50_000, 3000
	rnd := rand.New(rand.NewPCG(1, 3))
	hex := func(n int) string { return fmt.Sprintf("%016x%048x", rand.New(rand.NewPCG(7, uint64(n))).Uint64(), n) }
	var all []*nostr.Event
	for n := range events {
		all = append(all, &nostr.Event{
			ID: hex(n), PubKey: hex(rnd.IntN(authors)), CreatedAt: nostr.Timestamp(n / 3), Kind: []int{7, 1111, 1617, 1621}[rnd.IntN(4)],
			Content: strings.Repeat("as said before, ", 4+rnd.IntN(20)), Sig: strings.Repeat("0", 128), Tags: nostr.Tags{{"p", hex(n % 50)}},
		})
	}
	var names []string
	for n := range 2000 {
		names = append(names, hex(n))
	}
	db := open(b, b.TempDir())
	for some := range slices.Chunk(all, 500) {
		apply(b, db, some...)
	}
	view := viewOf(b, db)
	for name, f := range map[string]nostr.Filter{"kind": {Kinds: []int{1621}}, "tag": {Tags: nostr.TagMap{"p": {hex(3)}}}, "2000 authors": {Authors: names}} {
		f.Limit = 500
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				for _, err := range view.QueryRaw(b.Context(), f) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkDeletion takes away an announcement on which so many issues hang, each with a comment.
func BenchmarkDeletion(b *testing.B) {
	for _, issues := range []int{1, 5000} {
		b.Run(fmt.Sprint(issues), func(b *testing.B) {
			db := open(b, b.TempDir())
			announce := func(at nostr.Timestamp) *nostr.Event {
				return made(1_000_000+int(at), nostr.KindAnnouncement, at, nostr.Tag{"d", "x"})
			}
			address, _ := nostr.AddressOf(announce(1))
			all := []*nostr.Event{announce(1)}
			for n := range issues {
				issue := made(10+2*n, 1621, 100, nostr.Tag{"a", address.String()})
				all = append(all, issue, made(11+2*n, 1111, 101, nostr.Tag{"E", issue.ID}, nostr.Tag{"A", address.String()}))
			}
			for some := range slices.Chunk(all, 500) {
				apply(b, db, some...)
			}
			for at := nostr.Timestamp(1000); b.Loop(); at += 2 {
				apply(b, db, made(2_000_000+int(at), nostr.KindDeletion, at, nostr.Tag{"a", address.String()}))
				b.StopTimer()
				apply(b, db, announce(at+1))
				b.StartTimer()
			}
		})
	}
}
