// Package window collects changes: the first one opens a window, later ones do not move its end.
package window

import (
	"context"
	"time"
)

// Run calls flush once for every window of the given length that a signal on changed opened, until
// ctx ends or flush fails. changed needs a buffer of one, so that a sender never waits; a change
// that comes while flush runs opens the next window.
func Run(ctx context.Context, length time.Duration, changed <-chan struct{}, flush func(context.Context) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(length):
		}
		// What came since the window opened is part of it.
		select {
		case <-changed:
		default:
		}
		if err := flush(ctx); err != nil {
			return err
		}
	}
}
