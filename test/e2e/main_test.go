// Package e2e is the story of Tendril, told by the outside world: a foreign relay, git servers,
// people with git and nostr clients, and someone who listens on the bus. Everything runs against
// the built program.
package e2e

import (
	"testing"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

var must, await = fixture.Must, fixture.Await

func TestMain(m *testing.M) { world.Main(m) }
