package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"tendril.dev/lib/netguard"
)

const (
	// maxAdvertisement bounds what a server may say of its references: about a million of them.
	maxAdvertisement = 64 << 20

	advertisementType = "application/x-git-upload-pack-advertisement"
	requestType       = "application/x-git-upload-pack-request"
	resultType        = "application/x-git-upload-pack-result"
)

// server is what is known of a git server after it has introduced itself.
type server struct {
	base         string // the URL that requests go to, redirects followed
	byID         bool   // it gives objects that it does not advertise
	advertised   map[string]bool
	capabilities *capability.List
}

// offered returns those of the ids that the server advertises.
func (s *server) offered(ids []string) []string {
	var offered []string
	for _, id := range ids {
		if s.advertised[id] {
			offered = append(offered, id)
		}
	}
	return offered
}

// discover asks for the advertisement of references. Only of the wanted objects it is remembered
// whether they are advertised.
func (f *fetching) discover(ctx context.Context, base string, wanted []string) (_ *server, err error) {
	ctx, pace, end := f.limits.paced(ctx)
	defer func() {
		err = tooSlow(ctx, err)
		end()
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/info/refs?service=git-upload-pack", nil)
	if err != nil {
		return nil, notGit("its URL cannot be asked: %w", err)
	}
	request.Header.Set("Accept", advertisementType)
	response, err := f.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if err := checkResponse(response, advertisementType); err != nil {
		return nil, err
	}
	final, err := baseOf(response.Request.URL)
	if err != nil {
		return nil, err
	}
	s := &server{base: final, advertised: map[string]bool{}, capabilities: capability.NewList()}
	if err := s.read(netguard.LimitBody(pace.of(response.Body), maxAdvertisement), wanted); err != nil {
		return nil, err
	}
	s.byID = s.capabilities.Supports(capability.AllowReachableSHA1InWant) || s.capabilities.Supports(capability.AllowTipSHA1InWant)
	return s, nil
}

// checkResponse makes an error of every answer but the one that was hoped for.
func checkResponse(response *http.Response, contentType string) error {
	cause := CauseServer
	switch response.StatusCode {
	case http.StatusOK:
		if got := response.Header.Get("Content-Type"); got != contentType {
			return notGit("it answered with the Content-Type %q", told(got))
		}
		return nil
	case http.StatusNotFound, http.StatusGone:
		cause = CauseNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		cause = CauseForbidden
	case http.StatusTooManyRequests:
		cause = CauseRateLimited
	}
	return &Error{Cause: cause, Err: errors.New("it answered " + told(response.Status))}
}

// baseOf is the URL of the repository behind that of its advertisement. A redirect that leads to
// anything else is none that git follows.
func baseOf(u *url.URL) (string, error) {
	bare := *u
	bare.RawQuery, bare.Fragment = "", ""
	base, ok := strings.CutSuffix(bare.String(), "/info/refs")
	if !ok || u.Query().Get("service") != "git-upload-pack" {
		return "", notGit("it redirects to %s", told(u.String()))
	}
	return base, nil
}

// read takes in an advertisement of protocol version 0 or 1 (gitprotocol-http, gitprotocol-pack).
func (s *server) read(r io.Reader, wanted []string) error {
	want := make(map[string]bool, len(wanted))
	for _, id := range wanted {
		want[id] = true
	}
	lines := pktline.NewScanner(r)
	if !lines.Scan() || !bytes.HasPrefix(lines.Bytes(), []byte("# service=git-upload-pack")) {
		return badLines(lines.Err(), "its advertisement does not begin as it should")
	}
	if !lines.Scan() || len(lines.Bytes()) != 0 {
		return badLines(lines.Err(), "its advertisement does not begin as it should")
	}
	for first := true; lines.Scan(); {
		line := bytes.TrimSuffix(lines.Bytes(), []byte("\n"))
		if len(line) == 0 {
			return nil
		}
		if first && bytes.Equal(line, []byte("version 1")) {
			continue
		}
		if first {
			first = false
			var words []byte
			line, words, _ = bytes.Cut(line, []byte{0})
			if err := s.capabilities.Decode(words); err != nil {
				return notGit("its capabilities cannot be read: %w", errors.New(told(err.Error())))
			}
		}
		id, _, found := bytes.Cut(line, []byte(" "))
		if !found {
			return notGit("a line of its advertisement is no reference")
		}
		if want[string(id)] {
			s.advertised[string(id)] = true
		}
	}
	return badLines(lines.Err(), "its advertisement ends too soon")
}

// badLines is the error of a scanner that stopped where it should not have.
func badLines(err error, otherwise string) error {
	switch spoken, ok := errors.AsType[*pktline.ErrorLine](err); {
	case ok:
		return &Error{Cause: CauseServer, Err: errors.New("it says: " + told(spoken.Text))}
	case err == nil, errors.Is(err, io.EOF):
		return notGit("%s", otherwise)
	case errors.Is(err, pktline.ErrInvalidPktLen):
		return notGit("it sends no pkt-lines")
	}
	return err
}
