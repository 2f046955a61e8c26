package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestCtrlCEndsTheWaitForInput: somebody who starts an import of standard input and gives it
// nothing can end it.
func TestCtrlCEndsTheWaitForInput(t *testing.T) {
	t.Parallel()
	silent, nobody := io.Pipe()
	defer nobody.Close()
	ctx, cancel := context.WithCancel(t.Context())
	in := interruptible(ctx, silent)
	cancel()
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("the read ended with %v", err)
	}
	if all, err := io.ReadAll(interruptible(t.Context(), strings.NewReader("events"))); string(all) != "events" || err != nil {
		t.Errorf("read %q, %v", all, err)
	}
}
