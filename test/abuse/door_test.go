package abuse

import (
	"testing"

	"tendril.dev/test/world"
)

// TestExpensiveQuestions: filters that cost as much as is allowed, asked again and again on many
// connections, do not keep others from their answers.
func TestExpensiveQuestions(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	n := moveIn(t, p)
	values := make([]string, 2000)
	for i := range values {
		values[i] = randomHex(32)
	}
	filter := map[string]any{"#e": values, "kinds": []int{1, 1111, 1621, 1617, 30617}}
	stop := make(chan struct{})
	defer close(stop)
	for i := range 50 {
		s := world.DialFrom(t, p.Relay(), stranger(i%5))
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.TrySend("COUNT", "c", filter, filter); err != nil {
					return
				}
				if _, err := s.TryNext(); err != nil {
					return
				}
			}
		}()
	}
	n.unhurt(3)
}
