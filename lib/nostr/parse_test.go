package nostr_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"tendril.dev/lib/nostr"
)

const plainest = `{"id":"i","pubkey":"p","created_at":1,"kind":2,"tags":[],"content":"c","sig":"s"}`

func TestWhatIsPlain(t *testing.T) {
	t.Parallel()
	with := func(old, new string) string {
		changed := strings.Replace(plainest, old, new, 1)
		if changed == plainest {
			t.Fatalf("%q is not in the event", old)
		}
		return changed
	}
	for _, tc := range []struct {
		name, json string
		plain      bool
	}{
		{"usual", plainest, true},
		{"another order", `{"sig":"s","kind":2,"content":"c","tags":[],"id":"i","created_at":1,"pubkey":"p"}`, true},
		{"spaces as Python writes them", `{"id": "i", "pubkey": "p", "created_at": 1, "kind": 2, "tags": [["e", "x"], []], "content": "c", "sig": "s"}`, true},
		{"tags", with("[]", `[["e","x","","y"],[],["a"]]`), true},
		{"all escapes", with(`"c"`, `"\"\\\/\b\f\n\r\t\u0000\u00e9\uD83D\uDE00é😀"`), true},
		{"an escaped tag", with("[]", `[["e\n","\u0041"]]`), true},
		{"zero and negative", with(`1,"kind":2`, `-12,"kind":0`), true},
		{"eighteen digits", with("1,", "123456789012345678,"), true},
		{"line separators", with(`"c"`, "\"\u2028\u0085\x7f\""), true},

		{"leading space", " " + plainest, false},
		{"trailing space", plainest + " ", false},
		{"trailing line break", plainest + "\n", false},
		{"space before a colon", with(`"kind":`, `"kind" :`), false},
		{"two spaces", with(`"kind":`, `"kind":  `), false},
		{"tab", with(`"kind":`, "\"kind\":\t"), false},
		{"line break between fields", with(`,"kind"`, ",\n\"kind\""), false},
		{"a further field", with(`"c"`, `"c","x":1`), false},
		{"one field twice", with(`"c"`, `"c","content":"d"`), false},
		{"a field is missing", with(`,"content":"c"`, ""), false},
		{"null tags", with("[]", "null"), false},
		{"null tag", with("[]", "[null]"), false},
		{"null content", with(`"c"`, "null"), false},
		{"escaped name", with(`"kind"`, `"k\u0069nd"`), false},
		{"line break in a string", with(`"c"`, "\"a\nb\""), false},
		{"line break after an escape", with(`"c"`, "\"\\n\n\""), false},
		{"tab in a string", with(`"c"`, "\"a\tb\""), false},
		{"leading zero", with("2", "02"), false},
		{"minus zero", with("2", "-0"), false},
		{"half a surrogate pair", with(`"c"`, `"\ud83d"`), false},
		{"the second half only", with(`"c"`, `"\ude00"`), false},
		{"two first halves", with(`"c"`, `"\ud83d\ud83d"`), false},
		{"half a pair before a letter", with(`"c"`, `"\ud83dabcdef"`), false},
	} {
		ev, plain, err := nostr.Parse([]byte(tc.json))
		if plain != tc.plain {
			t.Errorf("%s: plain is %v (%v)", tc.name, plain, err)
		}
		var want nostr.Event
		if wantErr := want.UnmarshalJSON([]byte(tc.json)); (wantErr == nil) != (err == nil) {
			t.Errorf("%s: %v, go-nostr says %v", tc.name, err, wantErr)
		} else if err == nil && !reflect.DeepEqual(*ev, want) {
			t.Errorf("%s: read as %+v, by go-nostr as %+v", tc.name, *ev, want)
		}
	}
}

func TestWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "{", "[]", `"x"`, plainest[:len(plainest)-1], plainest + "x", plainest + plainest,
		strings.Replace(plainest, "2", "2.5", 1), strings.Replace(plainest, "2", "1e3", 1), strings.Replace(plainest, "2", "-", 1),
		strings.Replace(plainest, "2", "9223372036854775808", 1), strings.Replace(plainest, `"c"`, `"\x"`, 1),
		strings.Replace(plainest, `"c"`, `"\u12g4"`, 1), strings.Replace(plainest, `"c"`, `"\`, 1), strings.Replace(plainest, `"c"`, `"\u12"`, 1),
		strings.Replace(plainest, "[]", `[["a",]]`, 1), strings.Replace(plainest, "[]", `[["a"],]`, 1), strings.Replace(plainest, "[]", `["a"]`, 1),
	} {
		if ev, plain, err := nostr.Parse([]byte(text)); err == nil || plain {
			t.Errorf("%s is read as %+v, plain %v", text, ev, plain)
		}
	}
	if _, _, err := nostr.Parse([]byte(strings.Replace(plainest, `"c"`, "\"\xff\"", 1))); !errors.Is(err, nostr.ErrEncoding) {
		t.Errorf("bytes that are not UTF-8: %v", err)
	}
}

// TestTheEventIsItsOwn: neither a change of the bytes nor one of a tag reaches anything else.
func TestTheEventIsItsOwn(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, 10_000} {
		data := usual(t, size)
		ev, plain, err := nostr.Parse(data)
		if err != nil || !plain {
			t.Fatal(plain, err)
		}
		for i := range data {
			data[i] = 'x'
		}
		if !ev.CheckID() {
			t.Fatalf("the event of %d bytes has changed with the bytes it was read from", size)
		}
		_ = append(ev.Tags[0], "more")
		if !ev.CheckID() {
			t.Fatal("what is appended to a tag lies in the next one")
		}
	}
}

// usual is the JSON of an event such as NIP-34 has them.
func usual(t testing.TB, content int) []byte {
	t.Helper()
	id := strings.Repeat("ab", 32)
	ev := &nostr.Event{
		PubKey: id, CreatedAt: 1700000000, Kind: 1111, Sig: strings.Repeat("cd", 64), Content: strings.Repeat("word\n", content/5),
		Tags: nostr.Tags{
			{"E", id, "wss://relay.example.org", id}, {"K", "1621"}, {"P", id}, {"e", id, "wss://relay.example.org", id}, {"k", "1621"}, {"p", id},
			{"a", "30617:" + id + ":tendril"},
		},
	}
	ev.ID = ev.GetID()
	data, err := ev.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestUsualEventsAreCheap holds the reader to its purpose: few allocations, however many tags.
func TestUsualEventsAreCheap(t *testing.T) {
	data := usual(t, 100)
	// The event, its text, id, key, content with escapes, tags and their values; and the lists that
	// are kept, which the race detector has made anew now and then. go-nostr needs 23.
	const most = 12
	if n := testing.AllocsPerRun(100, func() {
		if _, plain, err := nostr.Parse(data); err != nil || !plain {
			t.Fatal(plain, err)
		}
	}); n > most {
		t.Errorf("%v allocations, want at most %d", n, most)
	}
}

// FuzzParse: whatever go-nostr can read is read as the same event; what is plain is one line of
// JSON that encoding/json reads as the same event too; and what go-nostr writes is plain.
func FuzzParse(f *testing.F) {
	f.Add([]byte(plainest))
	f.Add(usual(f, 100))
	f.Add(usual(f, 4000))
	f.Add([]byte(`{"id": "i", "pubkey": "p", "created_at": -1, "kind": 0, "tags": [["e", "\u00e9\ud83d\ude00"], []], "content": "\n\/", "sig": "s"}`))
	f.Add([]byte(`{"kind":01,"tags":[null,["a",null]],"content":"\ud83d"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ev, plain, err := nostr.Parse(data)
		var want nostr.Event
		wantErr := want.UnmarshalJSON(data)
		if (err == nil) != (wantErr == nil && utf8.Valid(data)) {
			t.Fatalf("%v, go-nostr: %v", err, wantErr)
		}
		if err != nil {
			if plain {
				t.Fatal("plain with an error")
			}
			return
		}
		if !reflect.DeepEqual(*ev, want) || ev.CheckID() != want.CheckID() {
			t.Fatalf("read as %+v, by go-nostr as %+v", *ev, want)
		}
		if plain {
			checkPlain(t, data, ev)
			if short := nostr.Encode(ev); len(short) > len(data) {
				t.Fatalf("%d bytes of %d: %s", len(short), len(data), short)
			}
		}
		checkEncoded(t, ev)
	})
}

// checkPlain reads plain bytes by the standard library.
func checkPlain(t *testing.T, data []byte, ev *nostr.Event) {
	t.Helper()
	if bytes.ContainsAny(data, "\n\r\t") {
		t.Fatalf("plain, but not one line: %q", data)
	}
	var other struct {
		ID        string          `json:"id"`
		PubKey    string          `json:"pubkey"`
		CreatedAt nostr.Timestamp `json:"created_at"`
		Kind      int             `json:"kind"`
		Tags      nostr.Tags      `json:"tags"`
		Content   string          `json:"content"`
		Sig       string          `json:"sig"`
	}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&other); err != nil {
		t.Fatalf("plain, but not JSON: %v", err)
	}
	if !reflect.DeepEqual(nostr.Event(other), *ev) {
		t.Fatalf("read as %+v, by encoding/json as %+v", *ev, other)
	}
}

// checkEncoded reads again what go-nostr writes, and what Encode does.
func checkEncoded(t *testing.T, ev *nostr.Event) {
	t.Helper()
	// go-nostr leaves these out if they are empty.
	ev.ID, ev.PubKey, ev.Sig = ev.ID+"i", ev.PubKey+"p", ev.Sig+"s"
	for i, tag := range ev.Tags {
		if tag == nil { // written as an empty one
			ev.Tags[i] = nostr.Tag{}
		}
	}
	if ev.Tags == nil {
		ev.Tags = nostr.Tags{}
	}
	data, err := ev.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	digits := func(n int64) bool { return n > -1e18 && n < 1e18 }
	if !digits(int64(ev.CreatedAt)) || !digits(int64(ev.Kind)) {
		return
	}
	for _, data := range [][]byte{data, nostr.Encode(ev)} {
		again, plain, err := nostr.Parse(data)
		if err != nil || !plain || !reflect.DeepEqual(again, ev) {
			t.Fatalf("%s is read as %+v, plain %v: %v", data, again, plain, err)
		}
	}
}

// TestEncode: nothing is escaped but what must be.
func TestEncode(t *testing.T) {
	t.Parallel()
	ev := &nostr.Event{ID: "i", PubKey: "p", CreatedAt: -1, Kind: 2, Sig: "s", Content: "<&>\u2028\x7fé😀\b\f\n\r\t\x00\x1f\"\\/", Tags: nostr.Tags{{"a", "b\n"}, {}, nil}}
	want := `{"kind":2,"id":"i","pubkey":"p","created_at":-1,"tags":[["a","b\n"],[],[]],"content":"<&>` + "\u2028\x7f" + `é😀\b\f\n\r\t\u0000\u001f\"\\/","sig":"s"}`
	if got := string(nostr.Encode(ev)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := string(nostr.Encode(&nostr.Event{Content: "a\xffb\xe2\x80"})); got != `{"kind":0,"id":"","pubkey":"","created_at":0,"tags":[],"content":"a`+"\ufffd"+`b`+"\ufffd\ufffd"+`","sig":""}` {
		t.Errorf("not UTF-8: %s", got)
	}
}

func BenchmarkParse(b *testing.B) {
	data := usual(b, 100)
	b.Run("rawevent", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := nostr.Parse(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("go-nostr", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := new(nostr.Event).UnmarshalJSON(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// What is read from a buffer outlasts it, and says what Parse says.
func TestParseCopy(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"small": plainest, "large": strings.Replace(plainest, `"c"`, `"`+strings.Repeat("long ", 1000)+`"`, 1),
		"not plain": " " + plainest, "no event": `{"id":5}`, "not UTF-8": strings.Replace(plainest, `"c"`, "\"\xff\"", 1),
	} {
		want, plain, wantErr := nostr.Parse([]byte(data))
		buffer := []byte(data)
		ev, raw, err := nostr.ParseCopy(buffer)
		clear(buffer)
		if (err == nil) != (wantErr == nil) || !reflect.DeepEqual(ev, want) {
			t.Errorf("%s: %v, %v; want %v, %v", name, ev, err, want, wantErr)
		}
		if err == nil && plain != (raw != nil) || raw != nil && string(raw) != data {
			t.Errorf("%s: plain is %v, raw is %q", name, plain, raw)
		}
	}
}
