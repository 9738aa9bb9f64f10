"""SAR²: its algorithm as the paper writes it, its fast form, its bank and its regularisers."""
