package eventdb

import (
	"bytes"
	"strings"
	"testing"
)

func FuzzPack(f *testing.F) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, s := range []string{"", "x", id, id[:31], id[:32], id[:33], "x" + id, id + "x", strings.ToUpper(id), `{"id":"` + id + `","sig":"` + id + id + `"}`,
		id[:20] + "-" + id[:40] + "-" + id[:31] + "x", strings.Repeat(id, 10)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		packed := pack([]byte("before"), raw)
		back, err := unpack([]byte("after"), packed[len("before"):])
		if err != nil || !bytes.Equal(back, append([]byte("after"), raw...)) {
			t.Fatalf("%q comes back as %q, %v", raw, back, err)
		}
		if _, err := unpack(nil, raw); err == nil && len(raw) == 1 && raw[0] != 0 {
			t.Fatalf("%q is taken for packed", raw)
		}
	})
}

func TestPackTakesHalfOfHexDigits(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0123456789abcdef", 4)
	for s, want := range map[string]int{
		id:                            2 + 32,
		"x" + id + "y":                3 + 32 + 3,
		strings.ToUpper(id):           2 + 64,
		id[:31]:                       2 + 31,
		id[:33]:                       2 + 16 + 3,
		"short " + id[:31] + "g" + id: 2 + 38 + 32,
		strings.Repeat("z", 31) + "a" + strings.Repeat("z", 31): 2 + 63,
	} {
		if got := pack(nil, []byte(s)); len(got) != want {
			t.Errorf("%q is packed to %d bytes, want %d", s, len(got), want)
		}
	}
	if _, err := unpack(nil, []byte{5, 'x'}); err == nil {
		t.Error("what is cut off is taken")
	}
}
