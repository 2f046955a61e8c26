package logins

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxLogin bounds a login file, in bytes.
const maxLogin = 4096

// Login is a name and a password for the NATS server.
type Login struct {
	User     string
	Password string
}

// errLogin is what is wrong with a login file. It says nothing of what is in there.
var errLogin = errors.New("want one line, user:password")

// Read reads a login file: one line, `user:password`. Its errors do not hold the password; a file
// that is not there is fs.ErrNotExist.
func Read(path string) (Login, error) {
	f, err := os.Open(path)
	if err != nil {
		return Login{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLogin+1))
	if err != nil {
		return Login{}, err
	}
	line := strings.TrimRight(string(text), "\r\n")
	user, password, ok := strings.Cut(line, ":")
	if !ok || user == "" || password == "" || len(text) > maxLogin || strings.ContainsAny(line, "\r\n\x00") {
		return Login{}, fmt.Errorf("read %s: %w", path, errLogin)
	}
	return Login{user, password}, nil
}
