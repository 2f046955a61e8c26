package main

import (
	"testing"

	"tendril.dev/test/fixture"
)

// TestImportBelowAPath: repositories are pushed to where the service lies, and announcements list
// addresses there.
func TestImportBelowAPath(t *testing.T) {
	t.Parallel()
	for _, row := range fixture.Rows(`
		127.0.0.1:7334 | /        |                      | http://127.0.0.1:7334       | git.example.com
		:7334          |          |                      | http://127.0.0.1:7334       | git.example.com
		127.0.0.1:7334 | grasp/   |                      | http://127.0.0.1:7334/grasp | git.example.com/grasp
		127.0.0.1:7334 | /a/b     | https://x.example/a/b | https://x.example/a/b      | git.example.com/a/b
		127.0.0.1:7334 | /gr asp  |                      |                             |`) {
		i := importCommand{BindAddress: row[0], BasePath: row[1], Server: row[2], Domain: "git.example.com"}
		if err := i.lieBelow(); (err == nil) != (row[3] != "") || err == nil && (i.Server != row[3] || i.Domain != row[4]) {
			t.Errorf("%q: %s for %s, %v", row, i.Server, i.Domain, err)
		}
	}
}
