package main

import (
	"maps"
	"strings"
	"testing"
)

func TestUnshared(t *testing.T) {
	t.Parallel()
	relays := []string{"ws://world.test.svc:9001", "ws://world.test.svc:9002"}
	workers := map[string]string{"relayconn-a": "10.0.0.1", "relayconn-b": "10.0.0.2"}
	claims := map[string]string{"world.test.svc_9001": "relayconn-a", "world.test.svc_9002": "relayconn-b"}
	holders := map[string][]string{relays[0]: {"10.0.0.1"}, relays[1]: {"10.0.0.2"}}
	for _, c := range []struct {
		name   string
		change func(workers, claims map[string]string, holders map[string][]string)
		want   string
	}{
		{"all is well", func(_, _ map[string]string, _ map[string][]string) {}, ""},
		{"a relay without a claim", func(_, claims map[string]string, _ map[string][]string) { delete(claims, "world.test.svc_9002") }, "not claimed"},
		{"a worker that has gone", func(workers, _ map[string]string, _ map[string][]string) { delete(workers, "relayconn-b") }, "not there any more"},
		{"no worker is connected", func(_, _ map[string]string, holders map[string][]string) { delete(holders, relays[0]) }, "not connected"},
		{"another worker is connected", func(_, _ map[string]string, holders map[string][]string) { holders[relays[0]] = []string{"10.0.0.2"} }, "10.0.0.2 is connected"},
		{"two are connected", func(_, _ map[string]string, holders map[string][]string) {
			holders[relays[1]] = []string{"10.0.0.2", "10.0.0.1"}
		}, "10.0.0.1 is connected"},
	} {
		w, cl, h := maps.Clone(workers), maps.Clone(claims), maps.Clone(holders)
		c.change(w, cl, h)
		if got := unshared(relays, w, cl, h); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSharesLine(t *testing.T) {
	t.Parallel()
	if got, want := sharesLine(map[string]string{"r": "b", "s": "a", "t": "b"}), "a 1, b 2"; got != want {
		t.Errorf("the shares are %q, want %q", got, want)
	}
}
