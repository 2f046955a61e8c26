package nostr_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

const small = `{"kind":2,"id":"i","pubkey":"p","created_at":1,"tags":[],"content":"c","sig":"s"}`

// TestParse: what is no event is refused, and what is one says the same in our JSON, without what
// else its own JSON carried. A row replaces a part of an event, and says what our JSON has there.
func TestParse(t *testing.T) {
	t.Parallel()
	names := strings.NewReplacer("SMALL", small, "SPACE", " \n", "BYTE", "\xff")
	for _, c := range fixture.Rows(`
		SMALL    | SMALL                    | SMALL
		SMALL    | SPACESMALLSPACE          | SMALL
		SMALL    | {"sig": "s", "kind":2,"content":"c","tags":[],"id":"i","created_at":1,"pubkey":"p"} | SMALL
		"c"      | "b","content":"c"        | "c"
		[]       | [["e\n","\u0041"],[]]    | [["e\n","A"],[]]
		"c"      | "\"\\\/\b\f\n\r\t\u0000\u00e9\uD83D\uDE00é😀" | "\"\\/\u0008\u000c\n\r\t\u0000é😀é😀"
		[]       | null                     | []
		[]       | [null,["a"]]             | [[],["a"]]
		SMALL    |                          |
		SMALL    | {                        |
		SMALL    | []                       |
		SMALL    | 5                        |
		SMALL    | "x"                      |
		SMALL    | SMALLx                   |
		SMALL    | SMALLSMALL               |
		"c"      | "BYTE"                   |
		"c"      | 5                        |
		2        | "2"                      |
		2        | 2.5                      |
		[]       | {"a":"b"}                |
		[]       | ["a"]                    |
		[]       | [["a",5]]                |
		"kind":2 | "kind":                  |`) {
		for i := range c {
			c[i] = names.Replace(c[i])
		}
		data, want := []byte(strings.Replace(small, c[0], c[1], 1)), ""
		if c[2] != "" {
			want = strings.Replace(small, c[0], c[2], 1)
		}
		ev, err := Parse(data)
		clear(data) // the event may not share its memory
		switch {
		case (err == nil) != (want != ""):
			t.Errorf("%s: %v, %v", c[1], ev, err)
		case err == nil && string(Encode(ev)) != want:
			t.Errorf("%s: %s, want %s", c[1], Encode(ev), want)
		}
	}
}

func TestEncodeBrokenText(t *testing.T) {
	if got := string(Encode(&Event{Content: "a\xffb<&>", Tags: Tags{nil}})); !strings.Contains(got, `"tags":[[]],"content":"a\ufffdb<&>"`) {
		t.Error(got)
	}
}

// FuzzParse: an event that was read can be written, and read again as the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(strings.Replace(small, "[]", `[["e","\ud83d",null],null,["\u2028\\"]]`, 1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		ev, err := Parse(data)
		if err != nil {
			return
		}
		written := Encode(ev)
		again, err := Parse(written)
		if err != nil || !bytes.Equal(Encode(again), written) || HasID(again) != HasID(ev) {
			t.Fatalf("%s is read again as %+v, %v", written, again, err)
		}
		if len(ev.Tags) > 0 && len(ev.Tags[0]) > 0 && !reflect.DeepEqual(again.Tags[0], ev.Tags[0]) {
			t.Fatalf("%q is read again as %q", ev.Tags[0], again.Tags[0])
		}
	})
}

// TestForgedEvents: a row has the fields that are changed, and whether the id is right after that.
// The signature speaks of the event only then.
func TestForgedEvents(t *testing.T) {
	t.Parallel()
	for _, c := range fixture.Rows(strings.NewReplacer("ZERO128", strings.Repeat("0", 128), "F64", strings.Repeat("f", 64), "ID62", strings.Repeat("ab", 31)).Replace(`
		nothing                   |                                  | id
		content                   | "content":"!"                    |
		tag                       | "tags":[[],["a","\""],["x"]]     |
		upper-case id             | "id":"ID62AB"                    |
		short id                  | "id":"ID62"                      |
		another id                | "id":"ID62ab"                    |
		no signature              | "sig":""                         | id
		signature of zeros        | "sig":"ZERO128"                  | id
		signature beyond          | "sig":"F64F64"                   | id
		another author            | "pubkey":"79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798" |
		an author without a point | "pubkey":"F64"                   |`)) {
		ev := fixture.NewPerson().Sign(1, "hello\x00<&>\u2028é", Tag{}, Tag{"a", "\""})
		fixture.Must(t, ev.UnmarshalJSON([]byte("{"+c[1]+"}")))
		if id, sig := HasID(ev), Signed(ev); id != (c[2] != "") || id && sig != (c[1] == "") {
			t.Errorf("%s: id %v, signature %v", c[0], id, sig)
		}
	}
}
