package repository_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

func TestWaitingPushesAreOnTheDisk(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	r := gittest.Repo(t, s, "x")
	id := func(c string) string { return strings.Repeat(c, 64) }
	if all, err := r.Waiting(); err != nil || len(all) != 0 {
		t.Errorf("%v (%v)", all, err)
	}
	want := []repository.WaitingPush{
		{Event: id("a"), Client: "192.0.2.1", Bytes: 5},
		{Event: id("b"), Client: "2001:db8::/64", Bytes: 1 << 40},
		{Event: id("c")},
	}
	for _, p := range want {
		must(t, r.SetWaiting(p))
		must(t, r.SetWaiting(p))
	}
	for name, content := range map[string]string{
		id("d"): "-5 192.0.2.1\n", id("e"): "", id("f"): "5 " + strings.Repeat("x", 2000), "0": "5 x\n", "main": "5 x\n",
		id("0"): "99999999999999999999 x\n",
	} {
		must(t, os.WriteFile(filepath.Join(r.Path(), "waiting", name), []byte(content), 0o644))
	}
	for _, n := range []string{"0", "d", "e", "f"} { // what makes no sense counts, without client and bytes
		want = append(want, repository.WaitingPush{Event: id(n)})
	}
	all, err := r.Waiting()
	order := func(a, b repository.WaitingPush) int { return strings.Compare(a.Event, b.Event) }
	slices.SortFunc(all, order)
	slices.SortFunc(want, order)
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("%v (%v), want %v", all, err, want)
	}
	for _, p := range want {
		must(t, r.ForgetWaiting(p.Event))
		must(t, r.ForgetWaiting(p.Event))
	}
	if all, err := r.Waiting(); err != nil || len(all) != 0 {
		t.Errorf("%v (%v)", all, err)
	}
	for _, p := range []repository.WaitingPush{
		{Event: "../x"}, {Event: id("a"), Bytes: -1}, {Event: id("a"), Client: "a b"}, {Event: id("a"), Client: strings.Repeat("x", 65)},
	} {
		if err := r.SetWaiting(p); err == nil {
			t.Errorf("%+v was noted", p)
		}
	}
	gittest.Fsck(t, r.Path())
}
