package gateway

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/test/fixture"
)

func TestAddressesThatAreAnsweredAtTheDoor(t *testing.T) {
	t.Parallel()
	npub, err := nip19.EncodePublicKey(strings.Repeat("b", 64))
	must(t, err)
	// The request; the status, 0 where it is none of these; what the answer has.
	for _, row := range fixture.Rows(strings.ReplaceAll(`
		GET /N/x/info/refs?service=git-upload-pack  | 302 | ../../x.git/info/refs?service=git-upload-pack
		POST /N/x/git-upload-pack                   | 307 | ../x.git/git-upload-pack
		POST /N/a%2Fb/git-receive-pack              | 307 | ../a%2Fb.git/git-receive-pack
		GET /N/x.git/info/refs                      | 0   |
		GET /x/y/info/refs                          | 0   |
		GET /N/x                                    | 0   |
		POST /N/x.git/info/lfs/objects/batch        | 404 | no Git LFS
		GET /N/x.git/info/lfs                       | 404 | no Git LFS
		GET /N/x?go-get=1                           | 200 | content="git.example.com/N/x git https://git.example.com/N/x.git"
		GET /N/x/sub/package?go-get=1               | 200 | content="git.example.com/N/x git https://git.example.com/N/x.git"
		GET /N/x.git/sub?go-get=1                   | 200 | content="git.example.com/N/x.git git https://git.example.com/N/x.git"
		GET /N?go-get=1                             | 0   |
		GET /?go-get=1                              | 0   |
	`, "N", npub)) {
		method, target, _ := strings.Cut(row[0], " ")
		w := httptest.NewRecorder()
		answered := answerAddress(w, httptest.NewRequest(method, target, nil), "https://git.example.com")
		got := w.Header().Get("Location") + w.Body.String()
		if answered != (row[1] != "0") || answered && (row[1] != strings.TrimSpace(w.Result().Status[:3]) || !strings.Contains(got, row[2])) {
			t.Errorf("%v: %v, %d %q", row, answered, w.Code, got)
		}
	}
}
