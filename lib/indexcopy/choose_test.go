package indexcopy

import (
	"math"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	o := func(name string, seq uint64, rank int, busy bool) offer {
		return offer{IndexOffer: proto.IndexOffer{Name: name, Log: "log", Format: eventdb.Format, Seq: seq, Busy: busy}, rank: rank}
	}
	other := o("other", 1000, 0, false)
	other.Log = "another"
	newer := o("newer", 1000, 0, false)
	newer.Format++
	for name, c := range map[string]struct {
		offers []offer
		want   string
	}{
		"nobody":                            {nil, ""},
		"what is not worth it":              {[]offer{o("a", 0, 0, false), o("b", 99, 0, false), o("c", 199, 0, false)}, ""},
		"just worth it":                     {[]offer{o("a", 200, 0, false)}, "a"},
		"another log, another format":       {[]offer{other, newer, o("a", 500, 1, false)}, "a"},
		"who is asked first":                {[]offer{o("second", 1000, 1, false), o("first", 950, 0, false)}, "first second"},
		"not who is far behind":             {[]offer{o("second", 1000, 1, false), o("first", 900, 0, false)}, "second first"},
		"who has most":                      {[]offer{o("a", 990, 0, false), o("b", 1000, 0, false)}, "b a"},
		"who is free":                       {[]offer{o("busy", 1000, 0, true), o("free", 300, 1, false)}, "free busy"},
		"the largest sequence there can be": {[]offer{o("a", math.MaxUint64, 0, false)}, "a"},
	} {
		var names []string
		for _, o := range choose(c.offers, want{log: "log", seq: 100, head: 1000, worth: 100}) {
			names = append(names, o.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestBest(t *testing.T) {
	t.Parallel()
	good := offer{IndexOffer: proto.IndexOffer{Log: "log", Format: eventdb.Format, Seq: 950}}
	for name, c := range map[string]struct {
		change func(*offer)
		best   bool
	}{
		"as it is":      {func(*offer) {}, true},
		"busy":          {func(o *offer) { o.Busy = true }, false},
		"not the first": {func(o *offer) { o.rank = 1 }, false},
		"far behind":    {func(o *offer) { o.Seq = 900 }, false},
		"another log":   {func(o *offer) { o.Log = "another" }, false},
	} {
		o := good
		if c.change(&o); o.best(want{log: "log", head: 1000, worth: 100}) != c.best {
			t.Errorf("%s: want %t", name, c.best)
		}
	}
}

func TestMissingAndPatience(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		seq, head, messages, missing uint64
		patience                     time.Duration
	}{
		{0, 0, 0, 0, patienceLeast},
		{10, 10, 10, 0, patienceLeast},
		{11, 10, 10, 0, patienceLeast},
		{0, 100, 50, 50, patienceLeast},
		{90, 100, 50, 10, patienceLeast},
		{0, 1_000_000, 1_000_000, 1_000_000, 50 * time.Second},
		{0, math.MaxUint64, math.MaxUint64, math.MaxUint64, patienceMost},
	} {
		if got := missing(c.seq, c.head, c.messages); got != c.missing {
			t.Errorf("%+v: %d missing", c, got)
		}
		if got := patience(c.missing); got != c.patience {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if most(0) != 256<<20 || most(1<<30) != 256<<20+4<<30 || most(math.MaxUint64) <= 0 {
		t.Errorf("%d, %d, %d", most(0), most(1<<30), most(math.MaxUint64))
	}
}
