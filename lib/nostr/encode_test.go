package nostr

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	gonostr "github.com/nbd-wtf/go-nostr"
)

const small = `{"kind":2,"id":"i","pubkey":"p","created_at":1,"tags":[],"content":"c","sig":"s"}`

// TestParse: what is no event is refused, and what is one says the same in our JSON, without what
// else its own JSON carried.
func TestParse(t *testing.T) {
	t.Parallel()
	with := func(old, new string) string { return strings.Replace(small, old, new, 1) }
	for json, want := range map[string]string{
		small:              small,
		" " + small + "\n": small,
		`{"sig": "s", "kind":2,"content":"c","tags":[],"id":"i","created_at":1,"pubkey":"p"}`: small,
		with(`"c"`, `"b","content":"c"`):                            small,
		with("[]", `[["e\n","\u0041"],[]]`):                         with("[]", `[["e\n","A"],[]]`),
		with(`"c"`, `"\"\\\/\b\f\n\r\t\u0000\u00e9\uD83D\uDE00é😀"`): with(`"c"`, `"\"\\/\u0008\u000c\n\r\t\u0000é😀é😀"`),
		with("[]", "null"):                                          small,
		with("[]", `[null,["a"]]`):                                  with("[]", `[[],["a"]]`),

		"": "", "{": "", "[]": "", "5": "", `"x"`: "", small + "x": "", small + small: "",
		with(`"c"`, "\"\xff\""): "", with(`"c"`, "5"): "", with("2", `"2"`): "", with("2", "2.5"): "",
		with("[]", `{"a":"b"}`): "", with("[]", `["a"]`): "", with("[]", `[["a",5]]`): "", with(`"kind":2`, `"kind":`): "",
	} {
		data := []byte(json)
		ev, err := Parse(data)
		clear(data) // the event may not share its memory
		switch {
		case (err == nil) != (want != ""):
			t.Errorf("%s: %v, %v", json, ev, err)
		case err == nil && string(Encode(ev)) != want:
			t.Errorf("%s: %s, want %s", json, Encode(ev), want)
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

// forgeries are what is done to an event, and whether its id is right after that. Its signature
// speaks of the event only then.
var forgeries = map[string]struct {
	forge func(*Event)
	id    bool
}{
	"nothing":                   {func(*Event) {}, true},
	"content":                   {func(ev *Event) { ev.Content += "!" }, false},
	"tag":                       {func(ev *Event) { ev.Tags = append(ev.Tags, Tag{"x"}) }, false},
	"upper-case id":             {func(ev *Event) { ev.ID = strings.Repeat("A", 64) }, false},
	"short id":                  {func(ev *Event) { ev.ID = ev.ID[:62] }, false},
	"another id":                {func(ev *Event) { ev.ID = strings.Repeat("ab", 32) }, false},
	"no signature":              {func(ev *Event) { ev.Sig = "" }, true},
	"signature of zeros":        {func(ev *Event) { ev.Sig = strings.Repeat("0", 128) }, true},
	"signature beyond":          {func(ev *Event) { ev.Sig = strings.Repeat("f", 128) }, true},
	"another author":            {func(ev *Event) { ev.PubKey = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798" }, false},
	"an author without a point": {func(ev *Event) { ev.PubKey = strings.Repeat("f", 64) }, false},
}

func TestForgedEvents(t *testing.T) {
	t.Parallel()
	for name, f := range forgeries {
		ev := Event{Kind: 1, Content: "hello\x00<&>\u2028é", Tags: Tags{{}, {"a", "\""}}}
		if err := ev.Sign(gonostr.GeneratePrivateKey()); err != nil {
			t.Fatal(err)
		}
		f.forge(&ev)
		if id, sig := HasID(&ev), Signed(&ev); id != f.id || id && sig != (name == "nothing") {
			t.Errorf("%s: id %v, signature %v", name, id, sig)
		}
	}
}
