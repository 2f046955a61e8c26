package obs

import "testing"

func TestIsRelease(t *testing.T) {
	t.Parallel()
	for moduleVersion, want := range map[string]bool{
		"v0.1.0":                             true,
		"v1.2.3-rc.1":                        true,
		"v0.1.0+dirty":                       true,
		"(devel)":                            false,
		"":                                   false,
		"v0.0.0-20261129061443-6a7e75ed0b52": false,
		"v0.1.1-0.20261129061443-6a7e75ed0b52+dirty": false,
	} {
		if got := isRelease(moduleVersion); got != want {
			t.Errorf("%q: %v, want %v", moduleVersion, got, want)
		}
	}
}
