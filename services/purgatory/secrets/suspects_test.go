package secrets_test

import (
	"slices"
	"testing"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/secrets"
)

func TestSuspects(t *testing.T) {
	t.Parallel()
	secret := secretKey(t)
	file := func(at int64, content string) packscan.Object {
		return packscan.Object{Offset: at, Content: []byte(content)}
	}
	delta := func(at, base int64, content string) packscan.Object {
		return packscan.Object{Offset: at, Base: base, Delta: true, Content: []byte(content)}
	}
	for name, test := range map[string]struct {
		objects []packscan.Object
		want    []int64
	}{
		"nothing":                          {nil, nil},
		"files":                            {[]packscan.Object{file(12, "a"), file(20, secret), file(90, "nsec1"), file(99, "\x00"+secret)}, []int64{20}},
		"a delta with a secret":            {[]packscan.Object{file(12, "a"), delta(20, 12, "a "+secret)}, []int64{20}},
		"a delta of what is elsewhere":     {[]packscan.Object{delta(12, 0, secret[5:]), delta(90, 0, "a few words")}, []int64{12}},
		"a delta that mentions":            {[]packscan.Object{file(12, "a"), delta(20, 12, "nsec1 and ghp_ are words")}, nil},
		"the rest on a file without":       {[]packscan.Object{file(12, "a"), delta(20, 12, secret[5:])}, nil},
		"the rest on a file that mentions": {[]packscan.Object{file(12, "nsec1"), delta(20, 12, secret[5:])}, []int64{20}},
		"the rest on a version of it":      {[]packscan.Object{file(12, "nsec1"), delta(20, 12, "x"), delta(30, 20, secret[5:])}, []int64{30}},
	} {
		var s secrets.Suspects
		for _, o := range test.objects {
			s.Watch(o)
		}
		if !slices.Equal(s.Offsets(), test.want) || s.Dropped() != 0 {
			t.Errorf("%s: %v, want %v", name, s.Offsets(), test.want)
		}
	}
}

func TestSuspectsAreBounded(t *testing.T) {
	t.Parallel()
	var s secrets.Suspects
	content := []byte(secretKey(t))
	for at := range int64(12_000) {
		s.Watch(packscan.Object{Offset: at + 12, Delta: true, Base: 12, Content: content})
	}
	if len(s.Offsets()) != 10_000 || s.Dropped() != 2_000 {
		t.Errorf("%d remembered, %d not", len(s.Offsets()), s.Dropped())
	}
}
