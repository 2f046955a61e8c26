package fetch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: an answer may begin late, but then every window brings its bytes, or the phase ends.
func TestPace(t *testing.T) {
	t.Parallel()
	limits := Limits{MinRate: 1000, Begin: time.Minute, Window: 30 * time.Second}
	for _, tc := range []struct {
		name  string
		limit int64
		first time.Duration // until the first byte
		every time.Duration // between pieces
		piece int
		lasts time.Duration // until it is cut off; zero: never
	}{
		{"nothing comes", 1000, time.Hour, time.Hour, 1, time.Minute},
		{"it thinks, then sends", 1000, 59 * time.Second, time.Second, 2000, 0},
		{"a byte a second", 1000, time.Second, time.Second, 1, 31 * time.Second},
		{"just enough", 1000, time.Second, time.Second, 1100, 0},
		{"in large pieces", 1000, time.Second, 29 * time.Second, 60_000, 0},
		{"one large piece, then nothing", 1000, time.Second, time.Hour, 1 << 20, 31 * time.Second},
		{"no lowest rate", 0, time.Hour, time.Hour, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limits := limits
				limits.MinRate = tc.limit
				ctx, p, end := limits.paced(t.Context())
				defer end()
				began := time.Now()
				go func() {
					for wait := tc.first; ; wait = tc.every {
						select {
						case <-ctx.Done():
							return
						case <-time.After(wait):
							p.came(tc.piece)
						}
					}
				}()
				select {
				case <-ctx.Done():
					if took := time.Since(began); took != tc.lasts {
						t.Errorf("cut off after %v, want %v: %v", took, tc.lasts, context.Cause(ctx))
					}
					if failed, ok := errors.AsType[*Error](tooSlow(ctx, ctx.Err())); !ok || failed.Cause != CauseTooSlow {
						t.Errorf("the error is %v", failed)
					}
				case <-time.After(24 * time.Hour):
					if tc.lasts != 0 {
						t.Errorf("never cut off, want that after %v", tc.lasts)
					}
				}
			})
		})
	}
}
