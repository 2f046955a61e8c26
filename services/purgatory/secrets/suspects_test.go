package secrets_test

import (
	"slices"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/secrets"
)

// part is an object of a pack with its content.
type part struct {
	packscan.Object
	content string
}

// watch shows objects to a Watcher, in parts of n bytes.
func watch(s *secrets.Suspects, n int, objects ...part) {
	for _, o := range objects {
		if !s.Begin(o.Object) {
			continue
		}
		for piece := range slices.Chunk([]byte(o.content), n) {
			if !s.Part(piece) {
				break
			}
		}
		s.End()
	}
}

func TestSuspects(t *testing.T) {
	t.Parallel()
	secret := secretKey(t)
	object := func(kind packscan.Kind) func(at int64, content string) part {
		return func(at int64, content string) part { return part{packscan.Object{Kind: kind, Offset: at}, content} }
	}
	file, tree, commit, tag := object(packscan.Blob), object(packscan.Tree), object(packscan.Commit), object(packscan.Tag)
	delta := func(at, base int64, content string) part {
		return part{packscan.Object{Kind: packscan.Delta, Offset: at, Base: base}, content}
	}
	log := strings.Repeat("a long line of a large file\n", 10_000)
	for name, test := range map[string]struct {
		objects []part
		want    []int64
	}{
		"nothing":                          {nil, nil},
		"files":                            {[]part{file(12, "a"), file(20, secret), file(90, "nsec1 and ghp_ are words"), file(99, "\x00"+secret), file(120, "b")}, []int64{20}},
		"a file in UTF-16":                 {[]part{file(12, "\xff\xfe"+utf16(secret, 0, 1))}, []int64{12}},
		"a large file":                     {[]part{file(12, log+secret+log), file(900, log), file(999, log[:40_000]+githubToken)}, []int64{12, 999}},
		"a token that a part ends in":      {[]part{file(12, log[:34<<10-20]+githubToken+log)}, []int64{12}},
		"a large binary file":              {[]part{file(12, "\x00"+log+secret)}, nil},
		"messages":                         {[]part{commit(12, "tree 1\n\n"+secret), tag(80, "object 2\n\n"+githubToken), tree(99, secret)}, []int64{12, 80}},
		"a key that begins":                {[]part{file(12, "-----BEGIN RSA PRIVATE KEY-----\n"), file(80, "a PRIVATE KEY")}, []int64{12}},
		"a delta with a secret":            {[]part{file(12, "a"), delta(20, 12, "a "+secret)}, []int64{20}},
		"a delta that mentions":            {[]part{file(12, "a"), delta(20, 12, "nsec1 and ghp_ are words")}, nil},
		"the rest of a key":                {[]part{file(12, "nsec1"), delta(20, 12, secret[5:]), delta(90, 0, "x\n"+secret[5:])}, []int64{20, 90}},
		"the rest of a token":              {[]part{file(12, "token = ghp_xxxx"), delta(20, 12, githubToken[4:])}, []int64{20}},
		"the rest of an access key":        {[]part{delta(20, 12, awsKey[4:]+"\n")}, []int64{20}},
		"the rest of a key in PEM":         {[]part{delta(20, 12, "\n  \""+pemBody+"\",\n")}, []int64{20}},
		"words":                            {[]part{delta(20, 12, "aRatherLongIdentifierOf\n12345678901234567890\n\t9c1f8a3be07d5264f1e0\nx 9c1f8a3be07d5264f1e0\n")}, nil},
		"more beginnings than are checked": {[]part{file(12, strings.Repeat("ghp_0123456789abcdefghij ", 9))}, []int64{12}},
	} {
		for _, n := range []int{7, 1 << 20} {
			var s secrets.Suspects
			watch(&s, n, test.objects...)
			if !slices.Equal(s.Offsets(), test.want) || s.Dropped() != 0 {
				t.Errorf("%s: %v, want %v", name, s.Offsets(), test.want)
			}
		}
	}
}

func TestSuspectsAreBounded(t *testing.T) {
	t.Parallel()
	var s secrets.Suspects
	content := secretKey(t)
	for at := range int64(12_000) {
		watch(&s, 1000, part{packscan.Object{Kind: packscan.Delta, Offset: at + 12, Base: 12}, content})
	}
	if len(s.Offsets()) != 10_000 || s.Dropped() != 2_000 {
		t.Errorf("%d remembered, %d not", len(s.Offsets()), s.Dropped())
	}
}

// TestSuspectsTakesFewComparisons: of a pack that is full of beginnings only the first are
// compared. The others are suspects for being many.
func TestSuspectsTakeFewComparisons(t *testing.T) {
	t.Parallel()
	var s secrets.Suspects
	for at := range int64(3000) {
		watch(&s, 1000, part{packscan.Object{Kind: packscan.Blob, Offset: at + 12}, "ghp_0123456789abcdefghij ghp_0123456789abcdefghij"})
	}
	if first := s.Offsets(); len(first) != 500 || first[0] != 2512 {
		t.Errorf("%d suspects, %v", len(first), first[:min(len(first), 3)])
	}
}
