// Package bench measures the built program as a whole. Figures of single parts are in the
// benchmarks of their packages.
package bench

import (
	"testing"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

var must = fixture.Must

func TestMain(m *testing.M) { world.Main(m) }
