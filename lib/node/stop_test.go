package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/config"
)

// TestAStopEndsAndNamesWhatHangs: what does not close within NGIT_SHUTDOWN_WAIT does not keep the
// process.
func TestAStopEndsAndNamesWhatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, release := time.Now(), make(chan struct{})
		err := within(5*time.Second, func() error { <-release; return nil })
		if !errors.Is(err, errHung) || time.Since(began) != 5*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		close(release)
		failed := errors.New("failed")
		if err := within(time.Second, func() error { return failed }); err != failed {
			t.Error(err)
		}
	})
	n := &Node{Settings: config.Settings{}, shared: &shared{deadline: time.Now().Add(-time.Hour)}}
	if err := n.closeInTime(); err != nil { // nothing is open
		t.Error(err)
	}
}
