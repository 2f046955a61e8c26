package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		n := &Node{lag: newLag(func(_ context.Context, stream string) (uint64, error) {
			asked++
			if stream == "GONE" {
				return 0, errors.New("not connected")
			}
			return 100, nil
		})}
		at := uint64(40)
		n.Projection("behind", "EVENTS", func() uint64 { return at })
		n.Projection("ahead", "EVENTS", func() uint64 { return 101 }) // of an end that is a moment old
		n.Projection("unknown", "GONE", func() uint64 { return 1 })
		want := func(lines string) {
			t.Helper()
			head := "# HELP tendril_projection_lag How far a projection of this process is behind the end of its stream, in sequences.\n" +
				"# TYPE tendril_projection_lag gauge\n"
			if err := testutil.CollectAndCompare(n.lag, strings.NewReader(head+lines)); err != nil {
				t.Error(err)
			}
		}
		want("tendril_projection_lag{projection=\"ahead\"} 0\ntendril_projection_lag{projection=\"behind\"} 60\n")
		at = 100
		want("tendril_projection_lag{projection=\"ahead\"} 0\ntendril_projection_lag{projection=\"behind\"} 0\n")
		if asked != 2 {
			t.Errorf("the bus was asked %d times at once, want once a stream", asked)
		}
		time.Sleep(lagAge)
		want("tendril_projection_lag{projection=\"ahead\"} 0\ntendril_projection_lag{projection=\"behind\"} 0\n")
		if asked != 4 {
			t.Errorf("the bus was asked %d times, want again after a while", asked)
		}
	})
}
