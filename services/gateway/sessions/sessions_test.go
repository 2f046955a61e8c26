package sessions_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/reconcile"
	"tendril.dev/services/gateway/sessions"
)

func limits(all, each int) sessions.Limits {
	return sessions.Limits{Sessions: all, PerClient: each, Bytes: 100 * reconcile.ItemBytes, Idle: time.Minute}
}

// endings is what clients were told.
type endings struct {
	mu  sync.Mutex
	all []string
}

func (e *endings) told() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

func open(t *testing.T, table *sessions.Table, client string, ended *endings) *sessions.Session {
	t.Helper()
	s, err := table.Open(client, func(reason string) {
		ended.mu.Lock()
		defer ended.mu.Unlock()
		ended.all = append(ended.all, client+" "+reason)
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := sessions.New(limits(4, 3))
		var ended endings
		first := open(t, table, "a", &ended)
		open(t, table, "a", &ended)
		open(t, table, "a", &ended)
		if _, err := table.Open("a", nil); !errors.Is(err, sessions.ErrTooMuch) {
			t.Error(err)
		}
		open(t, table, "b", &ended)
		first.Touch()
		// The heaviest client gives way: with the session that is silent longest.
		open(t, table, "c", &ended)
		synctest.Wait()
		if len(ended.told()) != 1 || !strings.HasPrefix(ended.told()[0], "a closed: ") || !first.Touch() {
			t.Errorf("%q", ended.told())
		}
		open(t, table, "d", &ended)
		synctest.Wait()
		if len(ended.told()) != 2 || !strings.HasPrefix(ended.told()[1], "a closed: ") {
			t.Errorf("%q", ended.told())
		}
		// All have one now, and nobody has to give way to who would have two.
		if _, err := table.Open("d", nil); !errors.Is(err, sessions.ErrFull) {
			t.Error(err)
		}
		first.Close()
		first.Close()
		open(t, table, "d", &ended).Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, kept := table.Counts(); n != 0 || kept != 0 || len(ended.told()) != 5 {
			t.Errorf("%d sessions, %d bytes, %q", n, kept, ended.told())
		}
	})
}

func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := sessions.New(limits(4, 3))
		var ended endings
		s := open(t, table, "a", &ended)
		for range 5 {
			time.Sleep(50 * time.Second)
			if !s.Touch() {
				t.Fatal("ended though it is alive")
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(ended.told()) != 1 || ended.told()[0] != "a closed: nothing was heard for 1m0s" || s.Touch() {
			t.Errorf("%q", ended.told())
		}
		s.Keep(make(reconcile.Packed, 5)) // by who did not notice
		if _, kept := table.Counts(); kept != 0 {
			t.Errorf("%d bytes are kept for nobody", kept)
		}
	})
}

// TestMemory: a client has a quarter, and what is silent longest makes room.
func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := sessions.New(limits(100, 10))
		var ended endings
		keeps := func(want string, all ...*sessions.Session) {
			t.Helper()
			got := ""
			for _, s := range all {
				if items, ok := s.Items(); ok {
					got += fmt.Sprint(len(items), " ")
				} else {
					got += "- "
				}
			}
			if got != want {
				t.Errorf("kept %q, want %q", got, want)
			}
		}
		a, b, c := open(t, table, "a", &ended), open(t, table, "a", &ended), open(t, table, "b", &ended)
		a.Keep(make(reconcile.Packed, 26))
		keeps("- - - ", a, b, c)
		a.Keep(make(reconcile.Packed, 20))
		c.Keep(make(reconcile.Packed, 25))
		b.Keep(make(reconcile.Packed, 5))
		keeps("20 5 25 ", a, b, c)
		b.Keep(make(reconcile.Packed, 10))
		keeps("- 10 25 ", a, b, c)
		b.Touch()
		d, e, f := open(t, table, "d", &ended), open(t, table, "e", &ended), open(t, table, "f", &ended)
		d.Keep(make(reconcile.Packed, 25))
		e.Keep(make(reconcile.Packed, 25))
		keeps("- 10 25 25 25 ", a, b, c, d, e)
		f.Keep(make(reconcile.Packed, 25)) // c is silent longest
		keeps("- 10 - 25 25 25 ", a, b, c, d, e, f)
		for _, s := range []*sessions.Session{a, b, c, d, e, f} {
			s.Close()
		}
		if n, kept := table.Counts(); n != 0 || kept != 0 {
			t.Errorf("%d sessions, %d bytes", n, kept)
		}
	})
}
