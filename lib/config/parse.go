package config

import (
	"fmt"

	"github.com/alecthomas/kong"
)

// Parse reads flags over environment over `.env` over defaults. name is the program's, for help.
func Parse(name string, args []string) (Settings, error) {
	var s Settings
	parser, err := kong.New(&s, kong.Name(name))
	if err != nil {
		return s, fmt.Errorf("declare settings: %w", err)
	}
	if _, err := parser.Parse(args); err != nil {
		return s, err
	}
	return s, nil
}
