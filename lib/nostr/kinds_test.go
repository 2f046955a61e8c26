package nostr_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Keys, ids and objects of the tests; each is told apart by its digit.
var (
	alice, bob, carol, dave = key('a'), key('b'), key('c'), key('d')
	commit1, commit2        = strings.Repeat("1", 40), strings.Repeat("2", 40)
	sha256Commit            = strings.Repeat("3", 64)

	// words stand for them in tables.
	words = strings.NewReplacer("ALICE", alice, "BOB", bob, "CAROL", carol, "DAVE", strings.ToUpper(dave), "COMMIT1", commit1, "COMMIT2", commit2, "SHA256", sha256Commit,
		"NPUB", npubOf(alice), "OTHER", npubOf(bob), "ID1", key('1'), "ID2", key('2'), "ID3", key('3'), "ID4", key('4'), "ID5", key('5'), "ID6", key('6'))
)

func key(digit byte) string { return strings.Repeat(string(digit), 64) }

func npubOf(pubkey string) string { return fixture.Unsigned(pubkey).Npub }

func event(kind int, pubkey string, tags ...Tag) *Event {
	return &Event{ID: key('e'), PubKey: pubkey, Kind: kind, CreatedAt: 1000, Tags: tags}
}

// written is an event that a table has as its kind, its author and its tags, with ";" between two
// tags and "," between the values of one.
func written(kind, pubkey, tags string) *Event {
	number, _ := strconv.Atoi(kind)
	ev := event(number, words.Replace(pubkey))
	for tag := range strings.SplitSeq(words.Replace(tags), ";") {
		values := Tag{}
		if tag != "" {
			values = strings.Split(tag, ",")
		}
		ev.Tags = append(ev.Tags, values)
	}
	return ev
}

// many writes a text so many times, each with its number.
func many(text string, count int) string {
	var b strings.Builder
	for i := range count {
		fmt.Fprintf(&b, text, i)
	}
	return b.String()
}

// mentions checks that err is an error that contains the text; an empty text asks for no error.
func mentions(t *testing.T, what string, err error, text string) {
	t.Helper()
	if (err != nil) != (text != "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want an error about %q", what, err, text)
	}
}

// check parses the events of a table. Its last field is what the error says; empty: it is taken.
func check[T any](t *testing.T, parse func(*Event) (*T, error), table string, lists ...string) {
	t.Helper()
	t.Parallel()
	for _, c := range fixture.Rows(strings.NewReplacer(lists...).Replace(table)) {
		parsed, err := parse(written(c[1], c[2], c[3]))
		mentions(t, c[0], err, c[4])
		if (parsed == nil) != (err != nil) {
			t.Errorf("%s: %v with error %v", c[0], parsed, err)
		}
	}
}

// TestReplaces: the newer event, or at the same second the one with the lower id.
func TestReplaces(t *testing.T) {
	t.Parallel()
	low, high, newer := &Event{ID: "1"}, &Event{ID: "2"}, &Event{ID: "3", CreatedAt: 1}
	order := []*Event{nil, high, low, newer}
	for i, a := range order {
		for j, b := range order {
			if Replaces(a, b) != (i > j) {
				t.Errorf("%d of %d", i, j)
			}
		}
	}
}

// TestKinds: the table names each kind once, in order. What decides about others has a bound of its
// own or is a deletion request; what anybody may bring in vouches for nothing; a root vouches.
func TestKinds(t *testing.T) {
	t.Parallel()
	last := -1
	for _, k := range Kinds {
		if k.Number <= last {
			t.Errorf("kind %d stands behind kind %d", k.Number, last)
		}
		last = k.Number
		switch {
		case k.Decides && k.MaxBytes == 0 && k.Number != KindDeletion && k.Number != KindVanish:
			t.Errorf("kind %d decides about others and may have any size", k.Number)
		case k.FromAnyone && (k.Vouches || !k.Unlinked || k.MaxBytes == 0):
			t.Errorf("kind %d lets anybody bring in anything", k.Number)
		case k.Root && !k.Vouches:
			t.Errorf("kind %d is a root that lets no comment in", k.Number)
		}
		if KindOf(k.Number) != k {
			t.Errorf("kind %d is found as %+v", k.Number, KindOf(k.Number))
		}
	}
	if got := KindOf(33333); !got.Vouches || got.Unlinked || got.Counted || got.Decides {
		t.Errorf("an unknown kind is %+v", got)
	}
	if got := fmt.Sprint(KindsThat(func(k Kind) bool { return k.Root })); got != "[1617 1618 1621]" {
		t.Errorf("roots are %s", got)
	}
}
