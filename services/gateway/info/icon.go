package info

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"tendril.dev/lib/config"
)

// IconPath is where the icon is served.
const IconPath = "/icon.png"

// Bounds of an icon of the operator's own.
const (
	maxIconBytes = 1 << 20
	maxIconSide  = 4096 // pixels
)

//go:embed icon.png
var ownIcon []byte

// Icon is the relay's icon. It answers requests for it.
type Icon struct {
	URL  string // what the relay information document names
	body []byte // nil: it is elsewhere
}

// NewIcon makes the icon that the settings name (NGIT_RELAY_ICON).
func NewIcon(s config.Settings) (*Icon, error) {
	given := s.RelayIcon
	if strings.HasPrefix(given, "https://") || strings.HasPrefix(given, "http://") {
		if u, err := url.Parse(given); err != nil || u.Host == "" {
			return nil, iconError(given, "it is not a URL")
		}
		return &Icon{URL: given}, nil
	}
	icon := &Icon{URL: Address("http", s.Domain) + IconPath, body: ownIcon}
	if given == "" {
		return icon, nil
	}
	var err error
	if icon.body, err = readIcon(given); err != nil {
		return nil, iconError(given, err.Error())
	}
	return icon, nil
}

func iconError(given, why string) error {
	return &config.Error{Setting: "NGIT_RELAY_ICON", Value: given, Reason: why + "; want a PNG file, or a URL like https://example.com/icon.png"}
}

func readIcon(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read (%w)", err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, maxIconBytes+1))
	if err != nil {
		return nil, fmt.Errorf("it cannot be read (%w)", err)
	}
	if len(body) > maxIconBytes {
		return nil, fmt.Errorf("it is larger than %d bytes", maxIconBytes)
	}
	size, err := png.DecodeConfig(bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("it is no PNG")
	}
	if size.Width > maxIconSide || size.Height > maxIconSide {
		return nil, fmt.Errorf("it has more than %d pixels a side", maxIconSide)
	}
	return body, nil
}

// ServeHTTP answers with the icon, or with where it is.
func (i *Icon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if i.body == nil {
		http.Redirect(w, r, i.URL, http.StatusFound)
		return
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Cache-Control", "public, max-age=86400")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(i.body))
}
