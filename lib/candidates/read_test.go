package candidates

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"tendril.dev/proto"
)

// samples are messages of verdicts, of this version and of others.
func samples(t testing.TB) (all []string) {
	t.Helper()
	for _, vs := range []proto.Verdicts{
		{},
		{Ref: "1z", Verdicts: []proto.Verdict{}},
		{Ref: "1z", Verdicts: []proto.Verdict{
			{ID: strings.Repeat("ab", 32), Kind: 1621, Outcome: proto.Accepted, Seq: 1<<64 - 1},
			{ID: strings.Repeat("cd", 32), Kind: 65535, Outcome: proto.Rejected, Message: "invalid: \"a\"\n<&>\u2028\\", Retry: true},
			{Outcome: proto.Duplicate}, {Outcome: proto.HeldBack}, {Outcome: proto.Done}, {Outcome: "something new"},
		}},
		{Verdicts: []proto.Verdict{{Kind: -1, RetryAt: 1 << 40}}},
	} {
		data, err := json.Marshal(vs)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(data))
	}
	return append(all,
		`{"later":{"a":[1,{"b":"}"}]},"ref":"2","verdicts":[{"why":[null],"id":"x"}]}`,
		` { "verdicts" : [ null , { "id" : null } ] , "ref" : null } `, `null`,
	)
}

// TestVerdictsAreRead as encoding/json reads them.
func TestVerdictsAreRead(t *testing.T) {
	t.Parallel()
	for _, data := range samples(t) {
		var want proto.Verdicts
		if err := json.Unmarshal([]byte(data), &want); err != nil {
			t.Fatal(err)
		}
		if got, err := readVerdicts([]byte(data)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", data, got, err, want)
		}
	}
	for _, data := range []string{``, `{`, `[]`, `{"ref":1}`, `{"verdicts":{}}`, `{"verdicts":[{"kind":"1"}]}`, `{"verdicts":[{"seq":-1}]}`, `{"ref":"a"} x`} {
		if got, err := readVerdicts([]byte(data)); err == nil || got.Ref != "" || got.Verdicts != nil {
			t.Errorf("%s: %+v, %v", data, got, err)
		}
	}
}

// FuzzReadVerdicts: whatever comes, nothing breaks, and what was read keeps nothing of the message.
func FuzzReadVerdicts(f *testing.F) {
	for _, data := range samples(f) {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readVerdicts(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		for i := range data {
			data[i] = 'x'
		}
		if again, err := json.Marshal(got); err != nil || string(again) != string(text) {
			t.Fatalf("%s was %s (%v)", again, text, err)
		}
	})
}

func BenchmarkReadVerdicts(b *testing.B) {
	vs := proto.Verdicts{Ref: "1z"}
	for range 250 {
		vs.Verdicts = append(vs.Verdicts, proto.Verdict{ID: strings.Repeat("ab", 32), Kind: 1621, Outcome: proto.Accepted, Seq: 123456})
	}
	data, err := json.Marshal(vs)
	if err != nil {
		b.Fatal(err)
	}
	read := func(b *testing.B, with func([]byte) error) {
		b.ReportAllocs()
		for b.Loop() {
			if err := with(data); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(vs.Verdicts)), "ns/verdict")
	}
	b.Run("here", func(b *testing.B) {
		read(b, func(data []byte) error { _, err := readVerdicts(data); return err })
	})
	b.Run("encoding/json", func(b *testing.B) {
		read(b, func(data []byte) error { var vs proto.Verdicts; return json.Unmarshal(data, &vs) })
	})
}
